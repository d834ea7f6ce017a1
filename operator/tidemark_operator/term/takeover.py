"""Taking over is a write: the epoch first, then every slice, before anything is decided.

Order: raise the controller epoch in the Cluster's status; list all slices without a cache (make
them only for a Cluster that never had any); list topics, brokers and the rest; write our epoch into
every slice. From the last of these writes on, nothing that an older controller sends can land.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from tidemark_operator.controller.commit import BadSlice, load_slice, take_over
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.registration import fenced_at_take_over
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, USER, WATCHED, Json, Key, key_of
from tidemark_operator.leadership.epoch import raise_epoch, stored_epoch
from tidemark_operator.leadership.terms import ControllerFenced
from tidemark_operator.objects.conversions import (
    broker_info,
    cluster_id_of,
    cluster_info,
    cluster_of,
    stored_fenced,
    topic_info,
)
from tidemark_operator.objects.store import ObjectStore
from tidemark_operator.resources.broker import parse_broker
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import SLICES_DEFAULT
from tidemark_operator.slices.slice_store import Home, SliceStore, SlicesUnusable

logger = logging.getLogger(__name__)

CLAIM_ROUNDS_MAX = 10


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The start of a term."""

    cluster_key: Key
    state: ControllerState
    store: SliceStore


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Everything that a take-over needs; ``run`` does it."""

    api: KubeApi
    namespace: str
    identity: str
    leads: Callable[[], bool]
    objects: ObjectStore

    async def run(self, cluster: str, floor: int) -> TakenOver:
        """Become the controller of a Cluster, under an epoch above ``floor``."""
        body = await raise_epoch(
            self.api,
            self.namespace,
            cluster,
            identity=self.identity,
            cluster_id=cluster_id_of,
            floor=floor,
            leads=self.leads,
        )
        epoch = stored_epoch(body)
        logger.info("Cluster %s/%s: taking over, epoch %d", self.namespace, cluster, epoch)
        home = Home(self.namespace, cluster, str(body["metadata"]["uid"]))
        store = SliceStore(self.api, home, leads=self.leads)
        recorded = (body.get("status") or {}).get("slices")
        await store.read_all(recorded or SLICES_DEFAULT, create_missing=recorded is None)
        view = cluster_info(body, remote_storage="", storage_problem="")
        state = ControllerState(controller_id=self.identity, controller_epoch=epoch, cluster=view)
        load(state, store)
        await self._list()
        absorb(state, self.objects, cluster)
        await claim(state, store)
        if recorded is None:
            body = await self._record_slices(body)
        self.objects.put(body)
        logger.info(
            "Cluster %s/%s: epoch %d holds %d slices, %d topics, %d brokers",
            self.namespace,
            cluster,
            epoch,
            state.cluster.slices,
            len(state.topics),
            len(state.brokers),
        )
        return TakenOver(key_of(body), state, store)

    async def _list(self) -> None:
        for kind in WATCHED:
            found = await self.api.list_all(kind, self.namespace)
            self.objects.replace_kind(kind, found)

    async def _record_slices(self, body: Json) -> Json:
        """All slices exist now: from here on a missing one is a loss, not a beginning."""
        status = {**(body.get("status") or {}), "slices": SLICES_DEFAULT}
        return await self.api.replace_status(CLUSTER, {**body, "status": status})


def load(state: ControllerState, store: SliceStore) -> None:
    """Read every slice into the state; one that is not understood stops the take-over."""
    for index, payload in store.payloads():
        try:
            load_slice(state, index, payload)
        except BadSlice as error:
            if int(payload.get("controllerEpoch", 0)) > state.controller_epoch:
                raise ControllerFenced(str(error)) from error
            raise SlicesUnusable("SliceUnreadable", str(error)) from error


def absorb(state: ControllerState, objects: ObjectStore, cluster: str) -> None:
    """Let the state know the Topics and Brokers of the Cluster, and which Users there are."""
    config = dict(state.cluster.config)
    for body in objects.of_kind(BROKER):
        if cluster_of(body) == cluster:
            _absorb_broker(state, body)
    for body in objects.of_kind(USER):
        if cluster_of(body) == cluster:
            state.users.expect(key_of(body).namespaced_name)
    for body in objects.of_kind(TOPIC):
        if cluster_of(body) != cluster:
            continue
        try:
            state.put_topic(topic_info(body, config))
        except InvalidResource as error:
            logger.warning("%s cannot be read by this version: %s", key_of(body), error)


def _absorb_broker(state: ControllerState, body: Json) -> None:
    """The oldest Broker of a node id counts."""
    node_id = int(body["spec"]["nodeId"])
    rows = [row for key in state.keys_on(node_id) if (row := state.row(key)) is not None]
    fenced = fenced_at_take_over(node_id, stored_fenced(parse_broker(body)), rows)
    broker = broker_info(body, fenced=fenced)
    known = state.brokers.get(node_id)
    if known is None or (known.broker_epoch, broker.key) < (broker.broker_epoch, known.key):
        state.put_broker(broker)


async def claim(state: ControllerState, store: SliceStore) -> None:
    """Write our epoch into every slice; where another writer was quicker, what it wrote is taken
    in and written again under our epoch."""
    left = {write.index for write in take_over(state)}
    for _ in range(CLAIM_ROUNDS_MAX):
        writes = [write for write in take_over(state) if write.index in left]
        outcomes = await store.write_all(state, writes)
        left = {index for index, took_effect in outcomes.items() if not took_effect}
        if not left:
            return
    raise SlicesUnusable("SlicesContended", f"another writer keeps changing {len(left)} slices")
