"""Handlers of InitProducerId, the changes of a transaction, and its administration."""
