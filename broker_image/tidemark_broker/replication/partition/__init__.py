"""One hosted replica: its state, and in modules of their own what is done with it."""

from tidemark_broker.replication.partition.partition import Partition, ReplicaContext, Role

__all__ = ["Partition", "ReplicaContext", "Role"]
