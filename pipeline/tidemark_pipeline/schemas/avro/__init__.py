"""Avro: schemas, their columns, and records into Arrow."""
