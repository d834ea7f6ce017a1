"""Brokers whose disk gets full under load, and has room again: :mod:`tests.full_disk.__main__`."""
