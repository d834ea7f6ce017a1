"""Metrics of the job of an ``Export``. Those of a job of many topics are sums over its tables."""

from tidemark.metrics.metric import counter, gauge, rows

LAG = gauge("tidemark_export_lag_offsets", "Offsets of the topic that are not in the table yet.")
LAG_SECONDS = gauge(
    "tidemark_export_lag_seconds",
    "Seconds from the time of the table's contents to the job's last query of the topic's end. 0 "
    "if the table had all records then.",
)
EXPORTED = gauge(
    "tidemark_export_exported_offsets",
    "Offsets from the topic's log start, when the job started, to the table's position.",
)
CURRENT = gauge(
    "tidemark_export_current_timestamp_seconds",
    "Unix time of the table's contents. It contains all records that the topic had then.",
)
LAST_COMMIT = gauge(
    "tidemark_export_last_commit_timestamp_seconds", "Unix time of this job's last commit."
)
COMMITS = counter("tidemark_export_commits", "Commits of this job.")
WRITTEN_ROWS = counter("tidemark_export_written_rows", "Rows in these commits.")
WRITTEN_BYTES = counter(
    "tidemark_export_written_bytes", "Bytes of the data files in these commits."
)
CPU = counter(
    "tidemark_export_cpu_seconds",
    "CPU time of all processes of this job. Missing with executors.",
)
WRITTEN_LETTERS = counter(
    "tidemark_export_written_dead_letters", "Records in commits that could not be parsed."
)
TABLE_ROWS = gauge("tidemark_export_table_rows", "Rows in the table.")
TABLE_LETTERS = gauge("tidemark_export_dead_letters", "Rows in the dead letter table.")
TOPICS = gauge("tidemark_export_topics", "Topics of an Export of many topics.")
TOPICS_FAILING = gauge("tidemark_export_topics_failing", "Topics that are not exported.")
TOPICS_BEHIND = gauge(
    "tidemark_export_topics_behind", "Topics with records that are not in their table yet."
)
MAINTAINED = gauge(
    "tidemark_export_maintenance_timestamp_seconds",
    "Unix time of the end of this job's last maintenance of its tables.",
)
MAINTENANCE_FAILURES = gauge(
    "tidemark_export_maintenance_failed_tables",
    "Tables whose maintenance failed in this job's last run of it.",
)

ALL = rows(globals())
