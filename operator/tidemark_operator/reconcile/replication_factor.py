"""Updates of a Topic's manifest that follow changes made by Kafka clients.

A move to another number of replicas (AlterPartitionReassignments) is committed before the manifest
follows it, and whoever carries it out may die in between, or not be answered; the client need not
ask again. A factor that Kafka's clients alone hold was never written by anybody else, so where it
differs from what is placed, a move has made it differ, and it follows. What a person has written is
theirs, and the partitions follow it (:mod:`resizing`).

The same holds for a number of partitions that only Kafka clients set and that a restored backup has
reduced.
"""

import logging

from tidemark_operator.controller import reassignment
from tidemark_operator.controller.model import TopicInfo
from tidemark_operator.kube.kinds import TOPIC, Json
from tidemark_operator.objects.ownership import MANAGER, held, holder, patch_of
from tidemark_operator.reconcile.services import Services

logger = logging.getLogger(__name__)

_FACTOR = "replicationFactor"
_PARTITIONS = "partitions"


def with_factor(body: Json, replication_factor: int) -> Json:
    """What is to be applied for another number of replicas."""
    patch = patch_of(body)
    patch["spec"][_FACTOR] = replication_factor
    return patch


async def follow(services: Services, topic: TopicInfo) -> bool:
    """Write the number of replicas that all partitions have, if the manifest's is Kafka's clients'
    own; whether it was written. Raises ``KubeError``."""
    placed = reassignment.common_factor(services.state.rows_of(topic.id).values())
    if placed is None or placed == topic.replication_factor:
        return False
    return await _write(services, topic, _FACTOR, placed)


async def follow_partitions(services: Services, topic: TopicInfo) -> bool:
    """Raise the manifest's number of partitions if brokers have more and only Kafka clients set it.
    Return whether it was written."""
    present = services.state.partitions_of(topic)
    if present <= topic.partitions:
        return False
    return await _write(services, topic, _PARTITIONS, present)


async def _write(services: Services, topic: TopicInfo, field: str, value: int) -> bool:
    """Write a number that only Kafka clients own; return whether it was written."""
    key = TOPIC.key(topic.key)
    body = await services.client.api.get(TOPIC, key.namespace, key.name)
    is_clients = field in held(body).get("spec", {}) and holder(body, ("spec", field)) is None
    if not is_clients or body["metadata"]["uid"] != str(topic.uid):
        return False
    patch = patch_of(body)
    patch["spec"][field] = value
    await services.client.apply(TOPIC, patch, manager=MANAGER)
    logger.info("%s: %s follows what brokers have: %d", key, field, value)
    return True
