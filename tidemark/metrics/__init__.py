"""Metrics of the processes: one table, from which ``docs/reference/metrics.md`` is generated.

The table is the one reference for alerts. Every metric has a meaning and bounded labels: a label
that grows with the users' data would grow without limit.
"""
