"""Broker side of the control protocol: registration, heartbeats, commands and reports."""
