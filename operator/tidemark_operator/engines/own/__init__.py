"""Tidemark's own brokers as the engine: command connections and their messages."""
