"""Apache Kafka on this machine, from its published jars: real nodes (KRaft) as processes of their
own, for ``tidemark up --engine kafka``, for the demo, and for tests and benchmarks."""
