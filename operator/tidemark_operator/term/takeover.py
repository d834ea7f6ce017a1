"""Taking over is a write: the epoch first, then every slice, before anything is decided.

Order: list all slices without a cache and see that they are this Cluster's, whole and understood;
nothing is written before that, or a Cluster that cannot be controlled would be written to for ever.
Then our finalizer, and the controller epoch in the Cluster's status, above that of every slice;
list topics, brokers and the rest; write our epoch into every slice (made only for a Cluster that
never had any), each as it was listed: what an older controller wrote meanwhile is a conflict, and
taken in. From the last of these writes on, nothing that it sends can land.

Slices that are gone are made again, and empty; that they were lost, or are older than what brokers
were told, stands in the Cluster's status before that (:mod:`~tidemark_operator.controller.
rebuilding`).
"""

import dataclasses
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import slice_claim
from tidemark_operator.controller.commit import BadSlice, load_slice, take_over
from tidemark_operator.controller.controller_state import ControllerState
from tidemark_operator.controller.model import Acceptance, ClusterInfo, ClusterRebuilding
from tidemark_operator.controller.registration import fenced_at_take_over
from tidemark_operator.controller.slice_claim import ClaimRefused, SliceClaim
from tidemark_operator.controller.status.acceptances import recorded
from tidemark_operator.controller.status.conditions import time_text
from tidemark_operator.controller.status.rebuilding import entry
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.finalizers import add_finalizer, finalizers_of
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, USER, WATCHED, Json, Key, key_of
from tidemark_operator.leadership.epoch import raise_epoch, stored_epoch
from tidemark_operator.leadership.terms import ControllerFenced
from tidemark_operator.objects.client import take_list
from tidemark_operator.objects.conversions import (
    broker_info,
    claimant_of,
    cluster_info,
    cluster_of,
    rebuilding_of,
    stored_fenced,
    topic_info,
)
from tidemark_operator.objects.store import ObjectStore
from tidemark_operator.resources.broker import Broker, parse_broker
from tidemark_operator.resources.cluster import Cluster
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import CLUSTER_FINALIZER, SLICES_DEFAULT, slice_name
from tidemark_operator.slices.slice_store import (
    Home,
    SliceStore,
    SlicesUnusable,
    found_slice,
    list_slices,
)

logger = logging.getLogger(__name__)

CLAIM_ROUNDS_MAX = 10
#: More producer ids than any cluster hands out in a millisecond.
PRODUCER_IDS_PER_MS = 1_000
#: Above every commit: those of slices that are lost nobody knows.
COMMIT_UNKNOWN = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TakenOver:
    """The start of a term; ``adopted``: what a person's annotation let it take over."""

    cluster_key: Key
    state: ControllerState
    store: SliceStore
    adopted: Acceptance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeOver:
    """Everything that a take-over needs; ``run`` does it."""

    api: KubeApi
    namespace: str
    identity: str
    leads: Callable[[], bool]
    objects: ObjectStore

    async def run(self, cluster: str, floor: int, *, behind: bool = False) -> TakenOver:
        """Become the controller of a Cluster, under an epoch above ``floor``. ``behind``: a broker
        was told more than the slices hold; so it was if it has obeyed a later controller than
        status and slices know of."""
        body = await self.api.get(CLUSTER, self.namespace, cluster)
        found = await list_slices(self.api, self.namespace, cluster)
        claimed = whose(body, found)
        home = Home(self.namespace, cluster, claimed.cluster_id)
        store = SliceStore(self.api, home, leads=self.leads)
        store.begin(found, claimed.slices)
        state = ControllerState(
            controller_id=self.identity,
            controller_epoch=max(claimed.floor, stored_epoch(body)),
            cluster=_view(self.objects.believed(body), claimed),
        )
        load(state, store)
        behind = behind or floor > max(claimed.floor, stored_epoch(body))
        body = await self._claim_epoch(body, claimed, max(floor, claimed.floor), behind)
        epoch = state.controller_epoch = stored_epoch(body)
        logger.info("Cluster %s/%s: taking over, epoch %d", self.namespace, cluster, epoch)
        state.cluster = _view(self.objects.believed(body), claimed)
        if claimed.lost:
            logger.warning("PartitionSlices %s are lost and created again", ", ".join(claimed.lost))
        if claimed.creates or claimed.lost:
            await store.create_missing()
            load(state, store)
        await self._list()
        absorb(state, self.objects, cluster)
        written = await claim(state, store)
        # The epoch before ours is the last one.
        state.found = epoch - 1, COMMIT_UNKNOWN if claimed.lost else written
        state.had_time_to_report = False
        if state.cluster.rebuilding is not None and state.cluster.rebuilding.behind:
            state.doubted.update(row.key for row in state.all_rows())
        if (body.get("status") or {}).get("slices") is None:
            body = await self._record_slices(body, claimed.slices)
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
        return TakenOver(key_of(body), state, store, claimed.adopted)

    async def _claim_epoch(self, body: Json, claimed: SliceClaim, floor: int, behind: bool) -> Json:
        """Nothing exists outside before our finalizer stands."""
        meta = body["metadata"]
        if not meta.get("deletionTimestamp") and CLUSTER_FINALIZER not in finalizers_of(body):
            await add_finalizer(self.api, CLUSTER, body, CLUSTER_FINALIZER)
        return await raise_epoch(
            self.api,
            self.namespace,
            str(meta["name"]),
            identity=self.identity,
            uid=str(meta["uid"]),
            beginning=_beginning(claimed),
            noted=_noted(body, claimed, behind),
            floor=floor,
            leads=self.leads,
        )

    async def _list(self) -> None:
        for kind in WATCHED:
            await take_list(self.api, self.objects, kind, self.namespace)

    async def _record_slices(self, body: Json, slices: int) -> Json:
        """All slices exist now: from here on a missing one is a loss, not a beginning."""
        status = {**(body.get("status") or {}), "slices": slices}
        return await self.api.replace_status(CLUSTER, {**body, "status": status})


def whose(body: Json, found: Mapping[str, Json]) -> SliceClaim:
    """What the Cluster may go on with; raises ``SlicesUnusable``."""
    name = str(body["metadata"]["name"])
    claimed = slice_claim.claim(
        claimant_of(body),
        {each: found_slice(payload) for each, payload in found.items()},
        name_of=lambda index: slice_name(name, index),
        default=SLICES_DEFAULT,
    )
    if isinstance(claimed, ClaimRefused):
        raise SlicesUnusable(claimed.reason, claimed.message)
    return claimed


def _beginning(claimed: SliceClaim) -> dict[str, object]:
    """What stands in the status from the first epoch on. Producer ids begin at the clock, which
    those of no cluster outrun: an adopted one has handed out ids that are not known any more, and
    a log that is restored from another's tier takes a producer with an id that it knows for that
    one, whose records it has already."""
    now_ms = wall_ms()
    first: dict[str, object] = {
        "clusterId": claimed.cluster_id,
        "nextProducerId": now_ms * PRODUCER_IDS_PER_MS,
    }
    if claimed.adopted is None:
        return first
    return first | {
        "slices": claimed.slices,
        "accepted": recorded({}, [claimed.adopted], now_ms=now_ms),
    }


def _noted(body: Json, claimed: SliceClaim, behind: bool) -> dict[str, object]:
    """That rows are to be rebuilt, and which producer ids were handed out is not known any more. A
    rebuilding that is not done begins again: what was accepted for it was about less."""
    if not (behind or claimed.lost):
        return {}
    known = rebuilding_of(body)
    behind = behind or (known is not None and known.behind)
    now_ms = wall_ms()
    stored = (body.get("status") or {}).get("nextProducerId", 0)
    return {
        "rebuilding": entry(ClusterRebuilding(since=time_text(now_ms), behind=behind)),
        "nextProducerId": max(stored, now_ms * PRODUCER_IDS_PER_MS),
    }


def _view(body: Json, claimed: SliceClaim) -> ClusterInfo:
    """The Cluster as the claim has it, which its status may not say yet."""
    view = cluster_info(Cluster.known_part(body), remote_storage="", storage_problem="")
    return dataclasses.replace(view, cluster_id=claimed.cluster_id, slices=claimed.slices)


def load(state: ControllerState, store: SliceStore) -> None:
    """Read every slice into the state; one that is not understood stops the take-over."""
    for index, payload in store.payloads():
        try:
            load_slice(state, index, payload)
        except BadSlice as error:
            if int(payload.get("controllerEpoch", 0)) > state.controller_epoch:
                raise ControllerFenced(str(error)) from error
            raise SlicesUnusable(
                Reason.SLICE_UNREADABLE,
                f"{error}. If a newer operator has written it, upgrade the "
                "operator. Otherwise restore PartitionSlice "
                f"{payload['metadata']['name']} from a backup",
            ) from error


def absorb(state: ControllerState, objects: ObjectStore, cluster: str) -> None:
    """Let the state know the Topics and Brokers of the Cluster, and which Users there are. Fields
    that this version does not know keep none of them out: a term that never knew of a Topic would
    tell brokers nothing of its partitions."""
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
    body = Broker.known_part(body)
    node_id = int(body["spec"]["nodeId"])
    rows = [row for key in state.keys_on(node_id) if (row := state.row(key)) is not None]
    fenced = fenced_at_take_over(node_id, stored_fenced(parse_broker(body)), rows)
    broker = broker_info(body, fenced=fenced)
    known = state.brokers.get(node_id)
    if known is None or (known.broker_epoch, broker.key) < (broker.broker_epoch, known.key):
        state.put_broker(broker)


async def claim(state: ControllerState, store: SliceStore) -> int:
    """Write our epoch into every slice; where another writer was quicker, what it wrote is taken
    in and written again under our epoch. The last commit of those before us: ours go on from there,
    and would pass for one that is missing, of which a broker was told."""
    written = state.landed
    left = {write.index for write in take_over(state)}
    for _ in range(CLAIM_ROUNDS_MAX):
        writes = [write for write in take_over(state) if write.index in left]
        outcomes = await store.write_all(state, writes)
        left = {index for index, took_effect in outcomes.items() if not took_effect}
        if not left:
            return written
        theirs = (payload for index, payload in store.payloads() if index in left)
        commits = (int(each["commit"]) for each in theirs if not _is_ours(each, state))
        written = max((written, *commits))
    raise SlicesUnusable(
        Reason.SLICES_CONTENDED,
        f"another writer keeps changing {len(left)} slices. Find it in "
        "metadata.managedFields, and stop it",
    )


def _is_ours(payload: Json, state: ControllerState) -> bool:
    """An earlier try, which came late."""
    return int(payload["controllerEpoch"]) == state.controller_epoch
