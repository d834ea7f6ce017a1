"""Client and wire format of a Confluent-compatible schema registry."""
