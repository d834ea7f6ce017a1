"""Teardown of a deleted Cluster: its PartitionSlices, then the finalizers that waited.

The leader does this between terms, once a Cluster that is being deleted has no Topic and no Broker.
Nothing is decided any more, so no controller epoch is needed. Any step may have been done before,
by an operator that stopped. The Cluster's finalizer is removed last: while it is there, the next
operator continues the teardown.
"""

import asyncio
import logging

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.definitions import Definition, look_at_definition
from tidemark_operator.kube.errors import Conflict, NotFound
from tidemark_operator.kube.finalizers import finalizers_of, remove_finalizer
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, Json
from tidemark_operator.objects.conversions import cluster_id_of, cluster_of, is_leaving
from tidemark_operator.reconcile.object_conditions import deleted_conditions
from tidemark_operator.resources.names import CLUSTER_FINALIZER, SLICE_FINALIZER
from tidemark_operator.slices.slice_store import found_slice, list_slices
from tidemark_operator.term.cluster_discovery import write_cluster_conditions

logger = logging.getLogger(__name__)

PARALLEL = 16


async def tear_down(api: KubeApi, namespace: str, name: str) -> bool:
    """Remove a Cluster that is being deleted, once no Topic or Broker needs a controller.

    Removes its PartitionSlices and its finalizer. Returns False if the Cluster is not being
    deleted, or still needs a controller.
    """
    body = await api.get(CLUSTER, namespace, name)
    if not is_leaving(body) or await _needed(api, namespace, name):
        return False
    # Uninstalling the CRDs marks all objects as deleted, which is no decision about the cluster.
    if await look_at_definition(api, CLUSTER, namespace) is not Definition.SERVED:
        logger.warning(
            "Cluster %s/%s is kept, because its definition is being deleted", namespace, name
        )
        return False
    # Slices first: after the Cluster's finalizer is removed, no operator would look for them.
    await _remove_slices(api, namespace, body)
    if CLUSTER_FINALIZER in finalizers_of(body):
        body = await remove_finalizer(api, CLUSTER, body, CLUSTER_FINALIZER)
    # Other finalizers remain: the status says whose.
    if finalizers_of(body):
        await write_cluster_conditions(api, body, deleted_conditions(body))
    logger.info("Cluster %s/%s is completely deleted", namespace, name)
    return True


async def _needed(api: KubeApi, namespace: str, name: str) -> bool:
    """Return whether a Topic or Broker of the Cluster exists, read from the API, not the cache."""
    for kind in (TOPIC, BROKER):
        bodies = await api.list_all(kind, namespace)
        if any(cluster_of(body) == name for body in bodies):
            return True
    return False


async def _remove_slices(api: KubeApi, namespace: str, cluster: Json) -> None:
    """Remove this cluster's slices; those of an earlier cluster with the name stay."""
    found = await list_slices(api, namespace, str(cluster["metadata"]["name"]))
    own = cluster_id_of(cluster)
    parallel = asyncio.Semaphore(PARALLEL)

    async def remove(body: Json) -> None:
        async with parallel:
            await _remove_slice(api, namespace, body)

    await asyncio.gather(
        *(remove(body) for body in found.values() if found_slice(body).cluster_id == own)
    )


async def _remove_slice(api: KubeApi, namespace: str, body: Json) -> None:
    meta = body["metadata"]
    try:
        await api.delete(PARTITION_SLICE, namespace, str(meta["name"]), uid=str(meta["uid"]))
        if SLICE_FINALIZER in finalizers_of(body):
            await remove_finalizer(api, PARTITION_SLICE, body, SLICE_FINALIZER)
    except (NotFound, Conflict):  # deleted or replaced since the list was read
        logger.info("PartitionSlice %s is already deleted", meta["name"])
