"""Object stores of a tier: the port (``objects``), a directory, S3, Google Cloud Storage and Azure
Blob Storage, and their configuration.

No module here depends on what the objects contain.
"""
