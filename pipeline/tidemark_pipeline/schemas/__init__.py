"""Schemas of values, and their decoders into Arrow."""
