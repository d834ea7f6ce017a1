"""Changes of topics by Kafka clients, applied as ``Topic`` objects through the same admission."""
