"""The Kafka APIs this broker serves, one module for each, and the table made of them."""
