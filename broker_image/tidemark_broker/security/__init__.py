"""Who a client is, and what it may do. Nothing here knows of sockets or of Kafka's requests."""
