"""Core of the controller: decisions as pure functions of the state.

Plain synchronous deterministic Python. No clock, no randomness, no I/O: times are arguments, and
writes and requests are returned as data. The caller commits the writes, applies those that
succeeded (:func:`state.commit.apply`), and only then sends requests (*persist before acting*).
"""
