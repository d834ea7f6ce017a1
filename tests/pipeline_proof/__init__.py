"""``make pipeline-proof``: Spark reads what confluent-kafka reads, whatever is in the way."""
