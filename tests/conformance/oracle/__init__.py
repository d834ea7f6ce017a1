"""The same bytes to our broker and to Apache Kafka, and their answers compared.

    python -m tests.conformance.oracle [--only TEXT]

:mod:`cases` is the table of what is sent: rows that were thought of (:mod:`produced`,
:mod:`fetched`, :mod:`asked`), a good request of each Api with one field after another made
something else (:mod:`good`, :mod:`variations`), what is no frame (:mod:`frames`), and requests that
depend on answers (:mod:`stories`). :mod:`sides` sends it, :mod:`normal` makes answers comparable,
:mod:`on_purpose` lists what differs with a reason for each line, :mod:`figures` is how it stands.
"""
