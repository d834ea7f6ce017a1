"""Avro records into Arrow arrays, by a program that is compiled from the schemas."""
