"""Audit of a topic's segments in the tier, and its metrics."""
