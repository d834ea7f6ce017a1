"""Segments in a tier: copy, read and delete their objects, and verify what they contain."""
