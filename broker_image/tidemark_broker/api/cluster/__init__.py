"""Versions and features, brokers, and log directories."""
