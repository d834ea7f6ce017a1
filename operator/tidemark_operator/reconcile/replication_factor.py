"""The replication factor of a manifest that a move of Kafka's clients has left behind.

A move to another number of replicas (AlterPartitionReassignments) is committed before the manifest
follows it, and whoever carries it out may die in between, or not be answered; the client need not
ask again. A factor that Kafka's clients alone hold was never written by anybody else, so where it
differs from what is placed, a move has made it differ, and it follows. What a person has written is
theirs, and the partitions follow it (:mod:`resizing`).
"""

import logging

from tidemark_operator.controller import moving
from tidemark_operator.controller.model import TopicInfo
from tidemark_operator.kube.kinds import TOPIC, Json
from tidemark_operator.objects.ownership import MANAGER, held, holder, patch_of
from tidemark_operator.reconcile.services import Services

logger = logging.getLogger(__name__)

_FACTOR = "replicationFactor"


def with_factor(body: Json, replication_factor: int) -> Json:
    """What is to be applied for another number of replicas."""
    patch = patch_of(body)
    patch["spec"][_FACTOR] = replication_factor
    return patch


async def follow(services: Services, topic: TopicInfo) -> bool:
    """Write the number of replicas that all partitions have, if the manifest's is Kafka's clients'
    own; whether it was written. Raises ``KubeError``."""
    placed = moving.common_factor(services.state.rows_of(topic.id).values())
    if placed in (None, topic.replication_factor):
        return False
    key = TOPIC.key(topic.key)
    body = await services.client.api.get(TOPIC, key.namespace, key.name)
    is_clients = _FACTOR in held(body).get("spec", {}) and holder(body, ("spec", _FACTOR)) is None
    if not is_clients or body["metadata"]["uid"] != str(topic.uid):
        return False
    assert placed is not None
    await services.client.apply(TOPIC, with_factor(body, placed), manager=MANAGER)
    logger.info("%s: replicationFactor follows a move to %d replicas", key, placed)
    return True
