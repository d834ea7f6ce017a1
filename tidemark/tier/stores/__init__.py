"""Object stores of a tier: the port (``objects``), a directory, S3, and their configuration.

No module here depends on what the objects contain.
"""
