"""Client of any Kafka cluster: addresses, authentication, and administration."""
