"""What the job of an ``Export`` shows, of its one table."""

from tidemark.metrics.metric import counter, gauge, rows

LAG = gauge("tidemark_export_lag_offsets", "Offsets of the topic that the table has not.")
CURRENT = gauge(
    "tidemark_export_current_timestamp_seconds",
    "Unix time: all that the topic had then is in the table.",
)
LAST_COMMIT = gauge(
    "tidemark_export_last_commit_timestamp_seconds", "Unix time of this job's last commit."
)
COMMITS = counter("tidemark_export_commits", "Commits of this job.")
WRITTEN_ROWS = counter("tidemark_export_written_rows", "Rows that they wrote.")
WRITTEN_BYTES = counter("tidemark_export_written_bytes", "Bytes of their data files.")
WRITTEN_LETTERS = counter(
    "tidemark_export_written_dead_letters", "Records that did not parse, of those."
)
TABLE_ROWS = gauge("tidemark_export_table_rows", "Rows that the table has.")
TABLE_LETTERS = gauge("tidemark_export_dead_letters", "Rows that the table of dead letters has.")

ALL = rows(globals())
