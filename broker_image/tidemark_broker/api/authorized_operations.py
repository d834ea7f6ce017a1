"""``*_authorized_operations`` of answers: bit sets of the operations that the client may
perform (KIP-430).
"""

from tidemark_broker.api.client import Client
from tidemark_broker.security.acls import (
    CLUSTER_NAME,
    OPERATIONS_OF,
    Operation,
    ResourceType,
    bits,
)


def topic_operations(client: Client, topic: str) -> int:
    """Operations on a topic that the client may describe."""
    return _operations(client, ResourceType.TOPIC, topic)


def cluster_operations(client: Client) -> int:
    """Operations on the cluster; none for a client that may not describe it."""
    # Kafka returns an empty set rather than an error.
    if not client.may(Operation.DESCRIBE, ResourceType.CLUSTER):
        return 0
    return _operations(client, ResourceType.CLUSTER, CLUSTER_NAME)


def group_operations(client: Client, group_id: str) -> int:
    """Operations on a group that the client may describe."""
    return _operations(client, ResourceType.GROUP, group_id)


def _operations(client: Client, kind: ResourceType, name: str) -> int:
    return bits(operation for operation in OPERATIONS_OF[kind] if client.may(operation, kind, name))
