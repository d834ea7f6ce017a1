"""The same bytes to our broker and to Apache Kafka, and their answers compared.

    python -m tests.conformance.oracle [--only TEXT] [--brief]

:mod:`cases` is the table of what is sent, :mod:`sides` sends it, :mod:`normal` makes the answers
comparable, :mod:`on_purpose` lists what differs with a reason for each line.
"""
