"""Slices on a fake API server: missing slices, conflicts, and writes of unknown outcome."""

import dataclasses
import uuid

import pytest

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tests.unit.controller.controller_world import broker, cluster, row
from tidemark.ids import id_text
from tidemark_operator.controller.slice_claim import FoundSlice
from tidemark_operator.controller.state.commit import SliceWrite, plan
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.kube.errors import ApiServerUnavailable, Forbidden, Invalid, KubeError
from tidemark_operator.kube.kinds import PARTITION_SLICE, Json
from tidemark_operator.leadership.terms import ControllerFenced, NotLeading, SlicesBehind
from tidemark_operator.slices.committer import TrackingDraft
from tidemark_operator.slices.slice_store import (
    Home,
    SliceStore,
    SlicesUnusable,
    found_slice,
    list_slices,
)

HOME = Home("ns", "main", id_text(uuid.UUID(int=1)))
WRITE = "replace PartitionSlice"
READ = "get PartitionSlice"


class Slices:
    """Two slices, a state, and a store that this process leads."""

    def __init__(self) -> None:
        self.server = FakeApiServer()
        self.api = FakeKubeApi(self.server)
        self.leads = True
        self.landed: list[int] = []
        self.state = ControllerState(
            controller_id="a", controller_epoch=7, cluster=cluster(slices=2)
        )
        self.store = self.opened()

    def opened(self) -> SliceStore:
        return SliceStore(self.api, HOME, leads=lambda: self.leads)  # type: ignore[arg-type]

    async def begin(self) -> None:
        """Create two slices, as for a new Cluster."""
        self.store.begin(await list_slices(self.api, "ns", "main"), 2)  # type: ignore[arg-type]
        await self.store.create_missing()

    def planned(self, number: int = 1, partition_epoch: int = 0) -> SliceWrite:
        draft = TrackingDraft(self.state)
        draft.put_row(row((1, 2), number=number, partition_epoch=partition_epoch))
        (write,) = plan(draft).writes
        return write

    async def write(self, write: SliceWrite) -> bool:
        (outcome,) = (
            await self.store.write_all(
                self.state, [write], slice_stored=lambda _, done: self.landed.append(done.index)
            )
        ).values()
        return outcome

    def stored(self, index: int) -> Json:
        body = self.server.find(PARTITION_SLICE, f"main-{index:02d}")
        assert body is not None
        return body

    def overwrite(self, index: int, **fields: object) -> None:
        """Overwrite fields, as another operator does."""
        self.server.replace("other", PARTITION_SLICE, {**self.stored(index), **fields})

    @property
    def rows(self) -> int:
        return len(list(self.state.all_rows()))


@pytest.fixture
async def slices() -> Slices:
    made = Slices()
    await made.begin()
    return made


async def test_existing_slices_are_not_created_again(slices: Slices) -> None:
    slices.overwrite(1, commit=5)
    slices.store = slices.opened()
    await slices.begin()
    assert [payload["commit"] for _, payload in slices.store.payloads()] == [0, 5]


async def test_a_slice_names_its_owner(slices: Slices) -> None:
    assert found_slice(slices.stored(0)) == FoundSlice(HOME.cluster_id, 0)
    body = slices.stored(0)
    unlabelled = {**body, "metadata": {**body["metadata"], "labels": {}}}
    assert found_slice(unlabelled).cluster_id == "unknown ()"


async def test_the_state_advances_with_an_effective_write_and_is_announced_after_it(
    slices: Slices,
) -> None:
    write = slices.planned()
    assert await slices.write(write)
    assert slices.landed == [write.index]
    assert slices.rows == 1
    assert slices.stored(write.index)["commit"] == write.commit


async def test_conflict_is_not_forced_and_the_stored_slice_is_read(
    slices: Slices,
) -> None:
    # The other writer placed another partition in the same slice, at commit 50.
    foreign = slices.planned(number=2)
    write = dataclasses.replace(slices.planned(), index=foreign.index)
    slices.overwrite(write.index, **{**foreign.payload, "commit": 50})
    assert not await slices.write(write)
    assert slices.landed == []
    assert slices.state.commit == 50
    assert slices.rows == 1, "foreign"
    assert slices.stored(write.index)["commit"] == 50


@pytest.mark.parametrize("how", ["older", "vanished"])
async def test_restored_slice_ends_the_term(slices: Slices, how: str) -> None:
    """Brokers' first reports are older than the states pushed since: missing rows must not be
    rebuilt from them.
    """
    before = slices.planned()
    # The slice has advanced to the first write before the restore.
    assert await slices.write(before)
    slices.state.put_broker(broker(1))
    slices.state.take_replica_report(1, [])
    assert await slices.write(slices.planned(partition_epoch=1))
    # The slice has an older commit, or has lost its rows.
    slices.overwrite(before.index, **(before.payload if how == "older" else {"partitions": []}))
    with pytest.raises(SlicesBehind):
        await slices.write(slices.planned(partition_epoch=2))
    (known,) = slices.state.all_rows()
    assert known.partition_epoch == 1


@pytest.mark.parametrize("took_effect", [True, False])
async def test_a_write_of_unknown_outcome_is_settled_by_its_commit_number(
    slices: Slices, took_effect: bool
) -> None:
    write = slices.planned()
    # The connection breaks before the answer, with or without effect.
    slices.api.fail(WRITE, after=took_effect)
    assert await slices.write(write) is took_effect
    assert slices.rows == int(took_effect)
    assert bool(slices.landed) is took_effect


async def test_settling_reads_until_it_is_answered(slices: Slices) -> None:
    write = slices.planned()
    # The write takes effect, but its answer and the first two reads fail.
    slices.api.fail(WRITE, after=True)
    slices.api.fail(READ)
    slices.api.fail(READ, Forbidden(403, "not now"))
    assert await slices.write(write)
    assert slices.api.calls.count(f"{READ} main-{write.index:02d}") == 3


async def test_a_higher_controller_epoch_ends_the_term(slices: Slices) -> None:
    write = slices.planned()
    # Another controller claimed the slice.
    slices.overwrite(write.index, controllerEpoch=8)
    with pytest.raises(ControllerFenced):
        await slices.write(write)
    # The admission policy refuses the epoch, which means the same.
    slices.api.fail(WRITE, Invalid(422, "STALE_CONTROLLER_EPOCH: 8 is higher"))
    with pytest.raises(ControllerFenced):
        await slices.write(write)
    assert slices.rows == 0


@pytest.mark.parametrize("refusal", [Invalid(422, "too long"), Forbidden(403, "not you")])
async def test_a_refused_or_vanished_slice_stops_everything(
    slices: Slices, refusal: KubeError
) -> None:
    write = slices.planned()
    slices.api.fail(WRITE, refusal)
    with pytest.raises(SlicesUnusable) as refused:
        await slices.write(write)
    assert refused.value.reason == "SliceRefused"
    # The slice was deleted behind the operator's back.
    slices.server._objects.clear()
    with pytest.raises(SlicesUnusable) as vanished:
        await slices.write(write)
    assert vanished.value.reason == "SlicesMissing"


async def test_without_the_lease_nothing_is_written(slices: Slices) -> None:
    write, slices.leads = slices.planned(), False
    slices.api.calls.clear()
    with pytest.raises(NotLeading):
        await slices.write(write)
    assert slices.api.calls == []


async def test_a_holder_that_loses_the_lease_during_an_unknown_outcome_reads_no_more(
    slices: Slices,
) -> None:
    write = slices.planned()
    slices.api.fail(WRITE, ApiServerUnavailable(0, "no answer"), after=True)

    # The lease is lost while the write is under way.
    def lost(call: str) -> None:
        slices.leads = False

    slices.api.before = lost
    with pytest.raises(NotLeading):
        await slices.write(write)
