"""One term of leadership over an Apache Kafka: take over, look, and keep its topics as wanted."""
