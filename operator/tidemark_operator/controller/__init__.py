"""The controller core: state in, decisions out.

Plain synchronous deterministic Python. No clock, no randomness, no I/O: times are arguments, and
what is to be written or sent comes back as data. The shell around it commits the writes, tells the
state what succeeded (:func:`commit.apply`), and only then sends requests (*persist before acting*).
"""
