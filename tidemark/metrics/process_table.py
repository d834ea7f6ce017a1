"""What the client library shows of every process (Prometheus' own names)."""

from tidemark.metrics.metric import counter, gauge

RESIDENT_MEMORY = gauge("process_resident_memory_bytes", "Memory that the process has in use.")
CPU = counter("process_cpu_seconds", "Seconds of a core that the process has used.")

ALL = (
    CPU,
    RESIDENT_MEMORY,
    gauge("process_virtual_memory_bytes", "Virtual memory of the process."),
    gauge("process_start_time_seconds", "Unix time at which the process began."),
    gauge("process_open_fds", "Files and sockets that the process has open."),
    gauge("process_max_fds", "How many it may have open."),
)
