"""Produce, Fetch, offsets of records, and deletion of records."""
