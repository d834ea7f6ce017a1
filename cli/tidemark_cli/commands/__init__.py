"""The commands of ``tidemark``, one module each."""
