"""What the processes show on ``/metrics``: one table, which is also ``docs/reference/metrics.md``.

Whoever writes an alert has one place to look, and whoever adds a metric has to say what it means,
and what its labels may be: a label that grows with the users' data would grow without limit.
"""
