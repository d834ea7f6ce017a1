"""Updates of a Topic's manifest that follow changes made by Kafka clients.

A change of the replication factor by AlterPartitionReassignments is committed before the manifest
follows it. The controller may stop in between, or get no answer, and the client need not repeat the
request. If only Kafka's clients own the factor, no other writer has set it. A difference to the
placed replicas then comes from a reassignment, and the manifest follows. A factor that a person has
set is not changed, and the partitions follow it (:mod:`resizing`).

The same holds for a number of partitions that only Kafka clients set and that a restored backup has
reduced.
"""

import logging

from tidemark_operator.controller import reassignment
from tidemark_operator.controller.state.model import TopicInfo
from tidemark_operator.kube.kinds import TOPIC, Json
from tidemark_operator.objects.ownership import MANAGER, client_fields, holder, patch_of
from tidemark_operator.reconcile.services import ReconcilerServices

logger = logging.getLogger(__name__)

_FACTOR = "replicationFactor"
_PARTITIONS = "partitions"


def with_factor(body: Json, replication_factor: int) -> Json:
    """Return the patch to apply for another replication factor."""
    patch = patch_of(body)
    patch["spec"][_FACTOR] = replication_factor
    return patch


async def follow(services: ReconcilerServices, topic: TopicInfo) -> bool:
    """Write the replication factor of all partitions, if only Kafka clients own the manifest's.

    Returns whether it was written. Raises ``KubeError``.
    """
    placed = reassignment.common_factor(services.state.rows_of(topic.id).values())
    if placed is None or placed == topic.replication_factor:
        return False
    return await _write(services, topic, _FACTOR, placed)


async def follow_partitions(services: ReconcilerServices, topic: TopicInfo) -> bool:
    """Raise the manifest's number of partitions if brokers have more and only Kafka clients set it.
    Return whether it was written."""
    present = services.state.partitions_of(topic)
    if present <= topic.partitions:
        return False
    return await _write(services, topic, _PARTITIONS, present)


async def _write(services: ReconcilerServices, topic: TopicInfo, field: str, value: int) -> bool:
    """Write a spec field that Kafka clients own, so that it follows the actual partitions.

    ``field`` is ``partitions`` or ``replicationFactor``. Returns False, without a write, if another
    field manager (for example GitOps) owns the field, or if the Topic was recreated.
    """
    key = TOPIC.key(topic.key)
    # The store drops managed fields, so the object is read from the API.
    body = await services.client.api.get(TOPIC, key.namespace, key.name)
    is_clients = (
        field in client_fields(body).get("spec", {}) and holder(body, ("spec", field)) is None
    )
    if not is_clients or body["metadata"]["uid"] != str(topic.uid):
        return False
    patch = patch_of(body)
    patch["spec"][field] = value
    await services.client.apply(TOPIC, patch, manager=MANAGER)
    logger.info("%s: %s follows what brokers have: %d", key, field, value)
    return True
