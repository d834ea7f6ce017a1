"""Kafka's wire format, and the messages of Tidemark beside Kafka's schemas."""
