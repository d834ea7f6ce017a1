"""The operator's copy of the API server's objects, and their conversion to the core's values."""
