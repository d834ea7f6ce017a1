"""An existing Apache Kafka as the engine: what it has, and what makes it have what is wanted."""
