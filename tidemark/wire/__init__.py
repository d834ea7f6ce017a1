"""What goes over the wire beside the Kafka schemas themselves."""
