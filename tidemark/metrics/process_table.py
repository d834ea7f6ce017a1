"""Metrics of every process, from the client library (Prometheus' own names)."""

from tidemark.metrics.metric import counter, gauge

RESIDENT_MEMORY = gauge("process_resident_memory_bytes", "Resident memory in bytes.")
CPU = counter("process_cpu_seconds", "CPU time in seconds.")

ALL = (
    CPU,
    RESIDENT_MEMORY,
    gauge("process_virtual_memory_bytes", "Virtual memory in bytes."),
    gauge("process_start_time_seconds", "Unix time at which the process started."),
    gauge("process_open_fds", "Open file descriptors."),
    gauge("process_max_fds", "Maximum number of open file descriptors."),
)
