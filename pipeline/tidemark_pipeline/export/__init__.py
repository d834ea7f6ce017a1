"""A topic's records in a lakehouse table: rows, and in the same commit how far they go."""
