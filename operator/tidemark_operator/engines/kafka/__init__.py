"""An existing Apache Kafka as the engine: its present state, and requests that change it."""
