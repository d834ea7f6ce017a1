"""Other people's test suites, as they were published, against a cluster of ours: ``make
conformance``.

``python -m tests.suites --help`` says how; ``docs/reference/compatibility.md`` shows what came of
it.
"""
