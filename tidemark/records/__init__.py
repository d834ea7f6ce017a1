"""Record batches v2, byte for byte as Kafka writes them; pure."""
