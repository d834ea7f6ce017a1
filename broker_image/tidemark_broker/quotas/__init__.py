"""Kafka's client quotas (KIP-13, -55, -124, -599)."""
