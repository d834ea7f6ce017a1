"""Takeover as far as both engines share it: controller epoch, finalizer and lists of objects.

The controller epoch is a counter in the Cluster's status, raised by compare-and-set. The Lease only
elects; this number fences. A rule of the CRD rejects a lower epoch, and an equal epoch under
another identity. If two processes believe that they lead, each epoch belongs to exactly one of
them.
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

from tidemark_operator.controller.epochs import EPOCH_MAX
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import ApiServerUnavailable, Conflict, Invalid, NotFound
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of
from tidemark_operator.kube.kinds import CLUSTER, WATCHED, Json
from tidemark_operator.leadership.terms import EpochsExhausted, NotLeading
from tidemark_operator.objects.client import take_list
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.resources.names import CLUSTER_FINALIZER

logger = logging.getLogger(__name__)

TRIES_MAX = 20
_NOTHING: Mapping[str, object] = {}


def stored_epoch(cluster: Json) -> int:
    """Return the epoch in a Cluster's status, 0 before the first controller."""
    return int(_controller(cluster).get("epoch", 0))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EngineTakeover:
    """Inputs of a takeover with any engine; each engine's own class performs it."""

    api: KubeApi
    namespace: str
    identity: str
    leads: Callable[[], bool]
    objects: ObjectCache

    async def claim_epoch(
        self,
        body: Json,
        *,
        beginning: Mapping[str, object] = _NOTHING,
        noted: Mapping[str, object] = _NOTHING,
        floor: int = 0,
    ) -> Json:
        """Add the Cluster's finalizer and raise the controller epoch; return the Cluster.

        The epoch is above all earlier ones and above ``floor``. Fields of ``beginning`` are added
        where the status lacks them; fields of ``noted`` are always written. Raises ``NotFound`` if
        the Cluster does not exist, ``NotLeading`` if the Lease is lost, and ``EpochsExhausted``
        after the last epoch.
        """
        # The finalizer comes first: from the epoch on there is state that a deletion has to remove.
        meta = body["metadata"]
        if not meta.get("deletionTimestamp") and CLUSTER_FINALIZER not in finalizers_of(body):
            await add_finalizer(self.api, CLUSTER, body, CLUSTER_FINALIZER)
        name, tried = f"{self.namespace}/{meta['name']}", 0
        for _ in range(TRIES_MAX):
            # The Lease may run out between two tries; without it this process must not raise the
            # epoch.
            if not self.leads():
                raise NotLeading("the Lease expired during the takeover")
            cluster = await self.api.get(CLUSTER, self.namespace, meta["name"])
            if cluster["metadata"]["uid"] != meta["uid"]:
                raise NotFound(404, f"Cluster {name} was recreated during the takeover")
            # A write whose answer was lost may have taken effect.
            if tried and _controller(cluster) == {"identity": self.identity, "epoch": tried}:
                return cluster
            tried = max(stored_epoch(cluster), floor) + 1
            if tried > EPOCH_MAX:
                raise EpochsExhausted(
                    f"controller epoch {EPOCH_MAX} is the maximum, so no operator "
                    "can take over any more. Create another Cluster and move the "
                    "topics there"
                )
            status: Json = {**beginning, **(cluster.get("status") or {}), **noted}
            status["controller"] = {"identity": self.identity, "epoch": tried}
            try:
                # With the resourceVersion that was read. From now on the CRD's validation rule
                # rejects writes of earlier controllers.
                return await self.api.replace_status(CLUSTER, {**cluster, "status": status})
            # Conflict: another write came first. Invalid: the CRD's rule rejects a lower epoch.
            # Read the Cluster again in both cases.
            except (Conflict, Invalid, ApiServerUnavailable) as error:
                logger.info("controller epoch %d not written: %s", tried, error)
        raise ApiServerUnavailable(0, f"the controller epoch of {name} cannot be raised")

    async def list_objects(self) -> None:
        """List all objects, after the epoch is claimed: later changes arrive by the watch."""
        for kind in WATCHED:
            await take_list(self.api, self.objects, kind, self.namespace)


def _controller(cluster: Json) -> dict[str, Any]:
    status = cluster.get("status") or {}
    return dict(status.get("controller") or {})
