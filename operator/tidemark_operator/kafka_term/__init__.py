"""One term of leadership over an Apache Kafka: take over, observe, and reconcile its topics."""
