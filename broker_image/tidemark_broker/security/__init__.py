"""Authentication and authorization of clients. Independent of sockets and Kafka requests."""
