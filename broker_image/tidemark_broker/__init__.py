"""The broker: Kafka protocol, log, replication, remote log manager. Independent of Kubernetes."""
