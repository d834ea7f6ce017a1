"""Reading, creating, claiming and writing the PartitionSlices of one Cluster.

Three rules apply. A PUT always carries the resourceVersion that was read, so a conflict is never
forced. A higher controller epoch in a slice, or the API server's STALE_CONTROLLER_EPOCH, ends this
controller's term. A write of unknown outcome is settled by reading the commit number; a commit
number is never used for two contents, so even a late PUT is recognised.
"""

import asyncio
import logging
import random
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tidemark.backoff import Backoff
from tidemark.ids import id_text, parse_id
from tidemark.reasons import Reason
from tidemark_operator.controller.slice_claim import FoundSlice
from tidemark_operator.controller.state.commit import (
    SliceWrite,
    apply,
    goes_back,
    is_stored,
    load_slice,
)
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import (
    ApiServerUnavailable,
    Conflict,
    Forbidden,
    Invalid,
    NotFound,
)
from tidemark_operator.kube.kinds import PARTITION_SLICE, Json
from tidemark_operator.leadership.terms import ControllerFenced, NotLeading, SlicesBehind
from tidemark_operator.resources.names import CLUSTER_LABEL, SLICE_FINALIZER, slice_name

logger = logging.getLogger(__name__)

PARALLEL_WRITES = 16
REREAD = Backoff(first_s=0.1, most_s=2.0)
#: Label with the id of the slice's cluster as a uid; Kafka's text form may be no valid label.
CLUSTER_UID_LABEL = f"{CLUSTER_LABEL}-uid"

#: Called for each write that took effect, before the state advances.
SliceStored = Callable[[ControllerState, SliceWrite], None]


class SlicesUnusable(Exception):
    """Slices are missing, or belong to another Cluster: nothing is decided until a person acts."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Home:
    """Cluster that owns the slices."""

    namespace: str
    cluster: str
    cluster_id: str


async def list_slices(api: KubeApi, namespace: str, cluster: str) -> dict[str, Json]:
    """Return every slice under a Cluster's name, by name, read without a cache."""
    selector = f"{CLUSTER_LABEL}={cluster}"
    listed = await api.list_all(PARTITION_SLICE, namespace, label_selector=selector)
    return {str(body["metadata"]["name"]): body for body in listed}


def found_slice(body: Json) -> FoundSlice:
    """Return the owner of a slice by its label; without a valid label the owner is unknown."""
    labelled = (body["metadata"].get("labels") or {}).get(CLUSTER_UID_LABEL, "")
    try:
        cluster_id = id_text(uuid.UUID(labelled))
    except ValueError:
        cluster_id = f"unknown ({labelled})"
    return FoundSlice(cluster_id, int(body["controllerEpoch"]))


class SliceStore:
    """Slices of one Cluster during one term, with the metadata last read of each."""

    def __init__(
        self,
        api: KubeApi,
        home: Home,
        *,
        leads: Callable[[], bool],
    ) -> None:
        """Prepare the store without slices; :meth:`begin` takes over those that exist."""
        self._api = api
        self._home = home
        self._leads = leads
        #: By slice number: metadata as last read, for the next write.
        self._objects: dict[int, Json] = {}
        self._missing: list[int] = []  # Slices to create.
        self._parallel = asyncio.Semaphore(PARALLEL_WRITES)
        self.conflicts = 0
        self.writes = 0

    # ------------------------------------------------------------ taking over

    def begin(self, found: Mapping[str, Json], slices: int) -> None:
        """Continue with the listed slices; :meth:`create_missing` creates the others."""
        names = {index: slice_name(self._home.cluster, index) for index in range(slices)}
        self._missing = [index for index, name in names.items() if name not in found]
        self._objects = {i: found[name] for i, name in names.items() if name in found}

    async def create_missing(self) -> None:
        """Create the slices of a Cluster that never had any."""
        await asyncio.gather(*(self._create(index) for index in self._missing))

    async def _create(self, index: int) -> None:
        """Create one empty PartitionSlice, or read it if it exists already."""
        name = slice_name(self._home.cluster, index)
        labels = {
            CLUSTER_LABEL: self._home.cluster,
            CLUSTER_UID_LABEL: str(parse_id(self._home.cluster_id)),
        }
        body: Json = {
            "apiVersion": PARTITION_SLICE.api_version,
            "kind": PARTITION_SLICE.kind,
            "metadata": {"name": name, "labels": labels, "finalizers": [SLICE_FINALIZER]},
            "controllerEpoch": 0,
            "commit": 0,
            "partitions": [],
            "tombstones": [],
        }
        # The finalizer keeps a slice that a user deletes by mistake.
        async with self._parallel:
            try:
                self._objects[index] = await self._api.create(
                    PARTITION_SLICE, self._home.namespace, body
                )
            # An earlier attempt, or the previous operator, has created it.
            except Conflict:
                self._objects[index] = await self._get(index)
            except (Invalid, Forbidden) as error:
                raise SlicesUnusable(
                    Reason.SLICE_REFUSED,
                    f"PartitionSlice {name} is rejected: {error.message}. Allow "
                    "it, or apply the resource definitions and roles of this "
                    "version",
                ) from error

    def payloads(self) -> Iterable[tuple[int, Json]]:
        """Return (index, slice) as last read, for loading the core's state."""
        return sorted(self._objects.items())

    # ------------------------------------------------------------ writing

    async def write_all(
        self,
        state: ControllerState,
        writes: Iterable[SliceWrite],
        *,
        slice_stored: SliceStored | None = None,
    ) -> dict[int, bool]:
        """Write several slices in parallel; return by number whether each write was stored.

        A stored write is applied to the state, after a call of ``slice_stored``. If another writer
        was faster, the slice is read again, and its decisions have to be made again. When this
        returns or raises, the outcome of every write is known.
        """
        # Wait for all writes even if one fails: none may be left unsettled.
        ordered = list(writes)
        outcomes = await asyncio.gather(
            *(self._write(state, write, slice_stored) for write in ordered), return_exceptions=True
        )
        for outcome in outcomes:
            if isinstance(outcome, BaseException):
                raise outcome
        return {
            write.index: outcome is True for write, outcome in zip(ordered, outcomes, strict=True)
        }

    async def _write(
        self, state: ControllerState, write: SliceWrite, slice_stored: SliceStored | None
    ) -> bool:
        """Write one slice and apply it to the state; return whether it is stored."""
        # The commit number is used from now on, even if the write fails.
        state.commit = max(state.commit, write.commit)
        async with self._parallel:
            # The Lease is checked as late as possible before the write.
            self._check_leading()
            try:
                took_effect = await self._put(write)
            # A lost response or a conflict: read the slice to learn whether the write was stored.
            except (Conflict, ApiServerUnavailable) as error:
                logger.info("slice %d: %s", write.index, error)
                took_effect = await self._settle(state, write)
            except NotFound as error:
                raise SlicesUnusable(Reason.SLICES_MISSING, str(error)) from error
            except Invalid as error:
                if "STALE_CONTROLLER_EPOCH" in error.message:
                    raise ControllerFenced(error.message) from error
                raise SlicesUnusable(Reason.SLICE_REFUSED, error.message) from error
            except Forbidden as error:
                raise SlicesUnusable(Reason.SLICE_REFUSED, f"{error.message}. Allow it") from error
        if took_effect:
            if slice_stored is not None:
                slice_stored(state, write)
            apply(state, write)
        return took_effect

    async def _put(self, write: SliceWrite) -> bool:
        former = self._objects[write.index]
        body = {key: former[key] for key in ("apiVersion", "kind", "metadata")} | write.payload
        self._objects[write.index] = await self._api.replace(PARTITION_SLICE, body)
        self.writes += 1
        return True

    async def _settle(self, state: ControllerState, write: SliceWrite) -> bool:
        """Read a slice until that succeeds; return whether it has the content of ``write``.

        If not, the state takes over what the slice contains.
        """
        failures = 0
        while True:
            self._check_leading()
            try:
                now = await self._get(write.index)
                break
            except (ApiServerUnavailable, Forbidden) as error:
                failures += 1
                logger.warning("slice %d cannot be read: %s", write.index, error)
                await asyncio.sleep(REREAD.pause_s(failures, jitter=random.random()))
        # The next write is based on this version.
        self._objects[write.index] = now
        if int(now["controllerEpoch"]) > state.controller_epoch:
            raise ControllerFenced(
                f"slice {write.index} is at controller epoch {now['controllerEpoch']}"
            )
        if is_stored(write, now):
            return True
        self.conflicts += 1
        # The slice is older than the brokers' reports of this term, so they have to report again.
        if any(map(state.replica_reports.has_reported, state.brokers)) and goes_back(
            state, write.index, now
        ):
            raise SlicesBehind(f"slice {write.index} was restored to an earlier state")
        load_slice(state, write.index, now)
        return False

    async def _get(self, index: int) -> Json:
        name = slice_name(self._home.cluster, index)
        try:
            return await self._api.get(PARTITION_SLICE, self._home.namespace, name)
        except NotFound as error:
            raise SlicesUnusable(
                Reason.SLICES_MISSING, f"PartitionSlice {name} is deleted"
            ) from error

    def _check_leading(self) -> None:
        if not self._leads():
            raise NotLeading("the Lease expired")
