"""Avro: schemas, what columns they come to, and records straight into Arrow."""
