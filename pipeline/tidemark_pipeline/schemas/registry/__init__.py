"""A Confluent-compatible schema registry: what is asked of it, and what its records look like."""
