"""The controller epoch: a counter in the Cluster's status, raised by compare-and-set.

The Lease only elects; this number fences. A rule of the CRD refuses a lower epoch, and an equal one
under another identity, so of two that believe they lead exactly one gets each number.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidemark_operator.controller.epochs import EPOCH_MAX
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Conflict, Invalid, NotFound, Unavailable
from tidemark_operator.kube.kinds import CLUSTER, Json
from tidemark_operator.leadership.terms import EpochsExhausted, NotLeading

logger = logging.getLogger(__name__)

TRIES_MAX = 20
_NOTHING: Mapping[str, object] = {}


def stored_epoch(cluster: Json) -> int:
    """The epoch in a Cluster's status, 0 when no controller has ever been."""
    return int(_controller(cluster).get("epoch", 0))


def with_controller(
    cluster: Json,
    identity: str,
    epoch: int,
    beginning: Mapping[str, object],
    noted: Mapping[str, object] = _NOTHING,
) -> Json:
    """The Cluster with a new controller in its status; the resourceVersion stays."""
    status: Json = {**beginning, **(cluster.get("status") or {}), **noted}
    status["controller"] = {"identity": identity, "epoch": epoch}
    return {**cluster, "status": status}


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
    """Write ourselves in as the controller, one above the stored epoch and above ``floor``; the
    Cluster as written. What stands in ``beginning`` is written where the status has it not yet,
    what is ``noted`` in any case. Raises ``NotFound`` without that Cluster, ``NotLeading`` without
    the Lease, ``EpochsExhausted``."""
    tried = 0
    for _ in range(TRIES_MAX):
        if not leads():
            raise NotLeading("the Lease expired during the takeover")
        cluster = await api.get(CLUSTER, namespace, name)
        if cluster["metadata"]["uid"] != uid:
            raise NotFound(404, f"Cluster {namespace}/{name} was recreated during the takeover")
        if tried and _controller(cluster) == {"identity": identity, "epoch": tried}:
            return cluster  # the write that seemed to fail
        tried = max(stored_epoch(cluster), floor) + 1
        if tried > EPOCH_MAX:
            raise EpochsExhausted(
                f"controller epoch {EPOCH_MAX} is the maximum, so no operator "
                "can take over any more. Create another Cluster and move the "
                "topics there"
            )
        body = with_controller(cluster, identity, tried, beginning, noted)
        try:
            return await api.replace_status(CLUSTER, body)
        except (Conflict, Invalid, Unavailable) as error:
            logger.info("controller epoch %d not written: %s", tried, error)
    raise Unavailable(0, f"the controller epoch of {namespace}/{name} cannot be raised")


def _controller(cluster: Json) -> dict[str, Any]:
    status = cluster.get("status") or {}
    return dict(status.get("controller") or {})
