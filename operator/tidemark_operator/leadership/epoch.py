"""Controller epoch: a counter in the Cluster's status, raised by compare-and-set.

The Lease only elects; this number fences. A rule of the CRD rejects a lower epoch, and an equal
epoch under another identity. If two processes believe that they lead, each epoch belongs to exactly
one of them.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidemark_operator.controller.epochs import EPOCH_MAX
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, Invalid, NotFound
from tidemark_operator.kube.kinds import CLUSTER, Json
from tidemark_operator.leadership.terms import EpochsExhausted, NotLeading

logger = logging.getLogger(__name__)

TRIES_MAX = 20
_NOTHING: Mapping[str, object] = {}


def stored_epoch(cluster: Json) -> int:
    """Return the epoch in a Cluster's status, 0 before the first controller."""
    return int(_controller(cluster).get("epoch", 0))


async def raise_epoch(
    api: KubeApi,
    namespace: str,
    name: str,
    *,
    identity: str,
    uid: str,
    beginning: Mapping[str, object],
    noted: Mapping[str, object] = _NOTHING,
    floor: int,
    leads: Callable[[], bool],
) -> Json:
    """Record this process as the controller, with a controller epoch above all earlier ones.

    The epoch is above the stored one and above ``floor``. Fields of ``beginning`` are added where
    the status lacks them; fields of ``noted`` are always written. ``uid``: of the Cluster that was
    read. Returns the Cluster as written. Raises ``NotFound`` if the Cluster does not exist,
    ``NotLeading`` if the Lease is lost, and ``EpochsExhausted`` after the last epoch.
    """
    tried = 0
    for _ in range(TRIES_MAX):
        # The Lease may run out between two tries; without it this process must not raise the epoch.
        if not leads():
            raise NotLeading("the Lease expired during the takeover")
        cluster = await api.get(CLUSTER, namespace, name)
        if cluster["metadata"]["uid"] != uid:
            raise NotFound(404, f"Cluster {namespace}/{name} was recreated during the takeover")
        # A write whose answer was lost may have taken effect.
        if tried and _controller(cluster) == {"identity": identity, "epoch": tried}:
            return cluster
        tried = max(stored_epoch(cluster), floor) + 1
        if tried > EPOCH_MAX:
            raise EpochsExhausted(
                f"controller epoch {EPOCH_MAX} is the maximum, so no operator "
                "can take over any more. Create another Cluster and move the "
                "topics there"
            )
        status: Json = {**beginning, **(cluster.get("status") or {}), **noted}
        status["controller"] = {"identity": identity, "epoch": tried}
        try:
            # With the resourceVersion that was read.
            return await api.replace_status(CLUSTER, {**cluster, "status": status})
        # Conflict: another write came first. Invalid: the CRD's rule rejects a lower epoch. Read
        # the Cluster again in both cases.
        except (Conflict, Invalid, ApiServerUnavailable) as error:
            logger.info("controller epoch %d not written: %s", tried, error)
    raise ApiServerUnavailable(0, f"the controller epoch of {namespace}/{name} cannot be raised")


def _controller(cluster: Json) -> dict[str, Any]:
    status = cluster.get("status") or {}
    return dict(status.get("controller") or {})
