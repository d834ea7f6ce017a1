"""Brokers whose disk becomes full and is freed again under load (``make full-disk``)."""
