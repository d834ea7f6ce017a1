"""One term of leadership: takeover, tasks of the term, answers to brokers."""
