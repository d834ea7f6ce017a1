"""What Kafka clients change of topics, turned into ``Topic`` objects through the same admission."""
