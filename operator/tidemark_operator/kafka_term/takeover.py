"""Takeover of a Cluster whose engine is an Apache Kafka: its controller epoch and its objects.

There are no slices, because Kafka stores the rows. The epoch in the Cluster's status is claimed,
and it fences the statuses, which carry it. Requests to Kafka are fenced by the Lease alone, whose
time is checked before each (docs/explanation/engines.md).
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidemark_operator.controller.acknowledgements import AlwaysAcknowledged
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import EngineNotes
from tidemark_operator.kafka_term.disablement import NOTE
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of
from tidemark_operator.kube.kinds import CLUSTER, WATCHED, Json, Key, key_of
from tidemark_operator.leadership.epoch import raise_epoch, stored_epoch
from tidemark_operator.objects.client import take_list
from tidemark_operator.objects.conversions import cluster_info
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.resources.names import CLUSTER_FINALIZER

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class KafkaTakeoverResult:
    """Start of a term."""

    cluster_key: Key
    state: ControllerState


@dataclass(frozen=True, slots=True, kw_only=True)
class KafkaTakeover:
    """Inputs of a takeover; ``run`` performs it."""

    api: KubeApi
    namespace: str
    identity: str
    leads: Callable[[], bool]
    objects: ObjectCache

    async def run(self, body: Json) -> KafkaTakeoverResult:
        """Become the controller of a Cluster with an existing Kafka; return the start of the term.

        ``body`` is the Cluster as it was just read.
        """
        meta = body["metadata"]
        if not meta.get("deletionTimestamp") and CLUSTER_FINALIZER not in finalizers_of(body):
            await add_finalizer(self.api, CLUSTER, body, CLUSTER_FINALIZER)
        # Raising the epoch fences the previous operator's status writes.
        body = await raise_epoch(
            self.api,
            self.namespace,
            str(meta["name"]),
            identity=self.identity,
            uid=str(meta["uid"]),
            beginning={},
            floor=0,
            leads=self.leads,
        )
        # Partitions are not loaded from slices: the observer reads them from Kafka.
        state = ControllerState(
            controller_id=self.identity,
            controller_epoch=stored_epoch(body),
            cluster=cluster_info(
                self.objects.without_unconfirmed_deletion(body),
                remote_storage="",
                storage_problem="",
            ),
        )
        state.acknowledgements = AlwaysAcknowledged()
        state.engine = EngineNotes(keeps_rows=True, tiering=NOTE)
        # List after the epoch is claimed: later changes arrive by the watch.
        for kind in WATCHED:
            await take_list(self.api, self.objects, kind, self.namespace)
        self.objects.put(body)
        logger.info("Cluster %s: epoch %d", key_of(body), state.controller_epoch)
        return KafkaTakeoverResult(key_of(body), state)
