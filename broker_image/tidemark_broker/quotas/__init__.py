"""How much of a broker a client may use: Kafka's client quotas (KIP-13, -55, -124, -599)."""
