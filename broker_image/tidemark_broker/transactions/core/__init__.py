"""Decision logic of the transaction coordinator: requests, records and time are inputs, answers
and records are outputs. No clock, no sockets, no log.
"""
