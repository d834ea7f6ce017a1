"""Takeover of a Cluster: raise the epoch, then claim every slice, before anything is decided.

1. List all slices without a cache, and check that they are this Cluster's, complete and readable.
   Nothing is written before that. Otherwise a Cluster that cannot be controlled would be written
   to for ever.
2. Add our finalizer, and raise the controller epoch in the Cluster's status above that of every
   slice.
3. List topics, brokers and the other kinds.
4. Write our epoch into every slice, each under the resourceVersion that was listed. Slices are
   created only for a Cluster that never had any. A write of an older controller in between is a
   conflict, and its content is taken over. After the last write, no write of an older controller
   can take effect.

Lost slices are created again, empty. Before that, the Cluster's status records that they were lost,
or that they are older than what brokers received (:mod:`~tidemark_operator.controller.rebuilding`).
"""

import dataclasses
import logging
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.reasons import Reason
from tidemark_operator.clock import wall_ms
from tidemark_operator.controller import slice_claim
from tidemark_operator.controller.registration import fenced_at_take_over
from tidemark_operator.controller.slice_claim import SliceClaim
from tidemark_operator.controller.state.commit import BadSlice, load_slice, take_over
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import (
    Acceptance,
    Blocker,
    ClusterInfo,
    ClusterRebuilding,
)
from tidemark_operator.controller.status.conditions import time_text, with_acceptances
from tidemark_operator.controller.status.rebuilding import entry
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, USER, Json, Key, key_of
from tidemark_operator.leadership.terms import ControllerFenced
from tidemark_operator.objects.conversions import (
    broker_info,
    claimant_of,
    cluster_info,
    cluster_of,
    rebuilding_of,
    stored_fenced,
    topic_info,
)
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.reconcile.engine_takeover import EngineTakeover, stored_epoch
from tidemark_operator.resources.broker import Broker
from tidemark_operator.resources.cluster import Cluster
from tidemark_operator.resources.metadata import InvalidResource
from tidemark_operator.resources.names import SLICES_DEFAULT, slice_name
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
#: Above every commit: the commits of lost slices are not known.
COMMIT_UNKNOWN = 2**63 - 1


@dataclass(frozen=True, slots=True)
class TakeoverResult:
    """Start of a term; ``adopted`` is the acceptance by annotation that made it possible."""

    cluster_key: Key
    state: ControllerState
    store: SliceStore
    adopted: Acceptance | None = None


class Takeover(EngineTakeover):
    """Takeover with Tidemark's own brokers; ``run`` performs it."""

    async def run(self, cluster: str, floor: int, *, behind: bool = False) -> TakeoverResult:
        """Become the controller of a Cluster, and load its state; return the start of the term.

        ``floor``: controller epoch that brokers have seen; the new one is above it. ``behind``: a
        broker has received newer states than the PartitionSlices contain, so rows have to be
        rebuilt. The same follows if ``floor`` is above all stored epochs.

        The order fences earlier controllers: read and check everything, raise the epoch in the
        Cluster's status, load, then write the epoch into every slice.
        """
        # Read everything without a cache, and check it before the first write.
        body = await self.api.get(CLUSTER, self.namespace, cluster)
        found = await list_slices(self.api, self.namespace, cluster)
        claimed = claim_of(body, found)
        home = Home(self.namespace, cluster, claimed.cluster_id)
        store = SliceStore(self.api, home, leads=self.leads)
        store.begin(found, claimed.slices)
        # Load with the stored epoch: a slice with a higher one was written by a later controller.
        state = ControllerState(
            controller_id=self.identity,
            controller_epoch=max(claimed.floor, stored_epoch(body)),
            cluster=_view(self.objects.without_unconfirmed_deletion(body), claimed),
        )
        load(state, store)
        # Raise the epoch. From now on the CRD's validation rule rejects earlier controllers.
        behind = behind or floor > max(claimed.floor, stored_epoch(body))
        # Both kinds of fields are in the same write as the epoch, so neither can be lost.
        body = await self.claim_epoch(
            body,
            beginning=_initial_fields(claimed),
            noted=_rebuilding_fields(body, claimed, behind),
            floor=max(floor, claimed.floor),
        )
        epoch = state.controller_epoch = stored_epoch(body)
        logger.info("Cluster %s/%s: taking over, epoch %d", self.namespace, cluster, epoch)
        state.cluster = _view(self.objects.without_unconfirmed_deletion(body), claimed)
        # Create what is missing; the status has recorded the loss before.
        if claimed.lost:
            logger.warning("PartitionSlices %s are lost and created again", ", ".join(claimed.lost))
        if claimed.creates or claimed.lost:
            await store.create_missing()
            load(state, store)
        # Load Topics, Brokers and Users, then fence earlier controllers in every slice.
        await self.list_objects()
        absorb(state, self.objects, cluster)
        written = await claim(state, store)
        # (previous controller's epoch, last commit that this takeover found)
        state.found = epoch - 1, COMMIT_UNKNOWN if claimed.lost else written
        state.had_time_to_report = False
        # If the slices are outdated, every row is in doubt until its brokers have reported.
        if state.cluster.rebuilding is not None and state.cluster.rebuilding.behind:
            state.unverified_rows.update(row.key for row in state.all_rows())
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
        return TakeoverResult(key_of(body), state, store, claimed.adopted)

    async def _record_slices(self, body: Json, slices: int) -> Json:
        """Record that all slices exist; from here on a missing slice is a loss, not a new
        cluster.
        """
        status = {**(body.get("status") or {}), "slices": slices}
        return await self.api.replace_status(CLUSTER, {**body, "status": status})


def claim_of(body: Json, found: Mapping[str, Json]) -> SliceClaim:
    """Return the claim under which the Cluster may continue; raises ``SlicesUnusable``."""
    name = str(body["metadata"]["name"])
    claimed = slice_claim.claim(
        claimant_of(body),
        {index: found_slice(payload) for index, payload in found.items()},
        name_of=lambda index: slice_name(name, index),
        default=SLICES_DEFAULT,
    )
    if isinstance(claimed, Blocker):
        raise SlicesUnusable(claimed.reason, claimed.message)
    return claimed


def _initial_fields(claimed: SliceClaim) -> dict[str, object]:
    """Return the status fields that a Cluster has from its first controller epoch on.

    Producer ids start at a number derived from the clock. An adopted cluster has handed out unknown
    ids, and a log restored from another cluster's tier contains some: a producer that reused such
    an id would be taken for a duplicate. No cluster hands out ids faster than the clock.
    """
    now_ms = wall_ms()
    first: dict[str, object] = {
        "clusterId": claimed.cluster_id,
        "nextProducerId": now_ms * PRODUCER_IDS_PER_MS,
    }
    if claimed.adopted is None:
        return first
    return first | {
        "slices": claimed.slices,
        "accepted": with_acceptances({}, [claimed.adopted], now_ms=now_ms),
    }


def _rebuilding_fields(body: Json, claimed: SliceClaim, behind: bool) -> dict[str, object]:
    """Return the status fields that record a rebuilding of rows; empty if none is necessary.

    The producer ids that were handed out are unknown then, so they restart at the clock. An
    unfinished rebuilding restarts, because a person's consents to it concerned fewer rows.
    """
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
    """Return the Cluster according to the claim, which its status may not show yet."""
    view = cluster_info(Cluster.known_part(body), remote_storage="", storage_problem="")
    return dataclasses.replace(view, cluster_id=claimed.cluster_id, slices=claimed.slices)


def load(state: ControllerState, store: SliceStore) -> None:
    """Load every PartitionSlice into the state. Raises ``SlicesUnusable`` for an unreadable one."""
    for index, payload in store.payloads():
        try:
            load_slice(state, index, payload)
        except BadSlice as error:
            # A newer controller may use a newer format: then this process is simply behind.
            if int(payload.get("controllerEpoch", 0)) > state.controller_epoch:
                raise ControllerFenced(str(error)) from error
            raise SlicesUnusable(
                Reason.SLICE_UNREADABLE,
                f"{error}. If a newer operator has written it, upgrade the "
                "operator. Otherwise restore PartitionSlice "
                f"{payload['metadata']['name']} from a backup",
            ) from error


def absorb(state: ControllerState, objects: ObjectCache, cluster: str) -> None:
    """Put the Cluster's Topics and Brokers into the state, and expect its Users.

    Objects with fields that this version does not know are included: without its Topic, brokers
    would receive nothing about a topic's partitions.
    """
    config = dict(state.cluster.config)
    for body in objects.of_kind(BROKER):
        if cluster_of(body) == cluster:
            _absorb_broker(state, body)
    # Users are read by their reconciler; until then brokers keep the credentials that they have.
    for body in objects.of_kind(USER):
        if cluster_of(body) == cluster:
            state.users.expect(key_of(body).namespaced_name)
    for body in objects.of_kind(TOPIC):
        if cluster_of(body) != cluster:
            continue
        # An unreadable Topic is not decided about, but its partitions stay in the slices.
        try:
            state.put_topic(topic_info(body, config))
        except InvalidResource as error:
            logger.warning("%s cannot be read by this version: %s", key_of(body), error)


def _absorb_broker(state: ControllerState, body: Json) -> None:
    """Put a Broker into the state; of several with one node id, the oldest counts."""
    body = Broker.known_part(body)
    node_id = int(body["spec"]["nodeId"])
    rows = [row for key in state.partitions.keys_on(node_id) if (row := state.row(key)) is not None]
    fenced = fenced_at_take_over(node_id, stored_fenced(Broker.parse(body)), rows)
    broker = broker_info(body, fenced=fenced)
    # The registration with the higher epoch is the later one; the name breaks ties.
    known = state.brokers.get(node_id)
    if known is None or (known.broker_epoch, broker.key) < (broker.broker_epoch, known.key):
        state.put_broker(broker)


async def claim(state: ControllerState, store: SliceStore) -> int:
    """Write the new controller epoch into every slice.

    Return the last commit of earlier controllers. This fences writers that still have an earlier
    epoch. After a conflict, the other writer's content is loaded and written again with the new
    epoch. The commits of this term must be numbered above the returned one; otherwise a new commit
    could be taken for one that a broker has received.
    """
    written = state.stored_commit
    left = {write.index for write in take_over(state)}
    for _ in range(CLAIM_ROUNDS_MAX):
        # The state now contains what the other writers wrote, so the write is encoded again.
        writes = [write for write in take_over(state) if write.index in left]
        outcomes = await store.write_all(state, writes)
        left = {index for index, took_effect in outcomes.items() if not took_effect}
        if not left:
            return written
        # Commits that other writers stored meanwhile also count as those of earlier controllers.
        conflicting = (payload for index, payload in store.payloads() if index in left)
        commits = (
            int(payload["commit"]) for payload in conflicting if not _is_own_write(payload, state)
        )
        written = max((written, *commits))
    raise SlicesUnusable(
        Reason.SLICES_CONTENDED,
        f"another writer keeps changing {len(left)} slices. Find it in "
        "metadata.managedFields, and stop it",
    )


def _is_own_write(payload: Json, state: ControllerState) -> bool:
    """Return whether this takeover wrote the payload: an earlier try that landed late."""
    return int(payload["controllerEpoch"]) == state.controller_epoch
