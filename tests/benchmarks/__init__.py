"""Measurements beside Apache Kafka; see README.md in this folder."""
