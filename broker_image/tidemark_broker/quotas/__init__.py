"""How much of a broker a client may use: Kafka's client quotas (KIP-13, KIP-55, KIP-124)."""
