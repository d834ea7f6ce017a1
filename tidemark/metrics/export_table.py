"""Metrics of the job of an ``Export``, about its one table."""

from tidemark.metrics.metric import counter, gauge, rows

LAG = gauge("tidemark_export_lag_offsets", "Offsets of the topic that are not in the table yet.")
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
WRITTEN_LETTERS = counter(
    "tidemark_export_written_dead_letters", "Records in commits that could not be parsed."
)
TABLE_ROWS = gauge("tidemark_export_table_rows", "Rows in the table.")
TABLE_LETTERS = gauge("tidemark_export_dead_letters", "Rows in the dead letter table.")

ALL = rows(globals())
