"""Schemas of values, and what reads values by them, into Arrow."""
