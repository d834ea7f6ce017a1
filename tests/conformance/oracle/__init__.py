"""The same bytes to our broker and to Apache Kafka, and their answers compared.

    python -m tests.conformance.oracle [--only TEXT]

:mod:`cases` is the table of what is sent: rows that were thought of (:mod:`produce_cases`,
:mod:`fetch_cases`, :mod:`compound_requests`), a good request of each Api with one field after
another made something else (:mod:`valid_requests`, :mod:`variations`), what is no frame
(:mod:`frames`), and requests that depend on answers (:mod:`stories`). :mod:`sides` sends it,
:mod:`response_normalization` makes answers comparable, :mod:`intended_differences` lists what
differs with a reason for each line, :mod:`figures` is how it stands.
"""
