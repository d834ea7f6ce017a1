"""The operator's copy of the API server's objects, and those objects as the core's values."""
