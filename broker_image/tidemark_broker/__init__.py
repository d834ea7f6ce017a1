"""The broker: Kafka protocol, log, replication, remote log manager; knows nothing of Kubernetes."""
