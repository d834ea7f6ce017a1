"""Tidemark's own brokers: connections that the operator speaks over, and its messages."""
