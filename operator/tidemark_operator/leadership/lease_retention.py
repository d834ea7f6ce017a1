"""Retention of the Lease as long as a Cluster needs a controller.

Deleting a namespace deletes its Lease too, and no Lease can be created in a namespace that is being
deleted. Then no operator could lead, and objects that wait for their finalizer would stay for ever.
A finalizer therefore retains the Lease from the first takeover until the last Cluster is deleted. A
Lease that is being deleted can still be taken and renewed.
"""

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of, remove_finalizer
from tidemark_operator.kube.kinds import LEASE
from tidemark_operator.resources.names import LEASE_FINALIZER


async def protect_lease(api: KubeApi, namespace: str, name: str) -> None:
    """Add our finalizer to the Lease.

    The API server rejects that for a Lease that is being deleted, so nothing is done for one.
    """
    try:
        lease = await api.get(LEASE, namespace, name)
    except NotFound:
        return
    if not lease["metadata"].get("deletionTimestamp") and LEASE_FINALIZER not in finalizers_of(
        lease
    ):
        await add_finalizer(api, LEASE, lease, LEASE_FINALIZER)


async def release_lease(api: KubeApi, namespace: str, name: str) -> None:
    """Remove our finalizer: no Cluster needs the Lease any more."""
    try:
        lease = await api.get(LEASE, namespace, name)
        if LEASE_FINALIZER in finalizers_of(lease):
            await remove_finalizer(api, LEASE, lease, LEASE_FINALIZER)
    except NotFound:
        return
