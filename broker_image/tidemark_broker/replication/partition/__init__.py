"""One hosted replica: its state, and one module for each kind of operation on it."""

from tidemark_broker.replication.partition.partition import Partition, ReplicaContext, Role

__all__ = ["Partition", "ReplicaContext", "Role"]
