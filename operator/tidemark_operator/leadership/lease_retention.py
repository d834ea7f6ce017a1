"""The Lease stays as long as a Cluster needs a controller.

Whoever deletes a namespace deletes its Lease too, and in a namespace that is being deleted none can
be made: no operator would lead again, and what waits for one would stay for ever. So a finalizer
keeps the Lease, which can still be taken and renewed while it is being deleted, from the first
take-over until there is no Cluster any more.
"""

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import NotFound
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of, remove_finalizer
from tidemark_operator.kube.kinds import LEASE
from tidemark_operator.resources.names import LEASE_FINALIZER


async def keep_lease(api: KubeApi, namespace: str, name: str) -> None:
    """Our finalizer stands on the Lease; one that is being deleted takes none any more."""
    try:
        lease = await api.get(LEASE, namespace, name)
    except NotFound:
        return
    if not lease["metadata"].get("deletionTimestamp") and LEASE_FINALIZER not in finalizers_of(
        lease
    ):
        await add_finalizer(api, LEASE, lease, LEASE_FINALIZER)


async def let_lease_go(api: KubeApi, namespace: str, name: str) -> None:
    """No Cluster needs it: it may be deleted with the namespace."""
    try:
        lease = await api.get(LEASE, namespace, name)
        if LEASE_FINALIZER in finalizers_of(lease):
            await remove_finalizer(api, LEASE, lease, LEASE_FINALIZER)
    except NotFound:
        return
