"""One RecordDeletion on a fake API server: offsets are frozen before a broker deletes anything."""

from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests import kstatus
from tests.unit.operator_shell.shell_world import UNDER_REPLICATED, ShellWorld
from tidemark.wire.deletions import (
    DeletionPoint,
    DeletionPointQuery,
    PartitionDeletion,
    PartitionDeletionResult,
)
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.kinds import RECORD_DELETION, TOPIC
from tidemark_operator.reconcile.record_deletion_reconciler import RecordDeletionReconciler
from tidemark_operator.reconcile.topic_reconciler import TopicReconciler

D = ShellWorld.key(RECORD_DELETION, "d")


@pytest.fixture
async def world() -> AsyncIterator[ShellWorld]:
    made = ShellWorld()
    made.make_cluster(UNDER_REPLICATED)
    made.make_broker(1)
    made.make_topic()
    async with made.term():
        await made.start_broker(1)
        await TopicReconciler(made.services).reconcile(made.key(TOPIC, "t"))
        made.engine.answers["deletion_points"] = points
        made.engine.answers["delete_records"] = deleted
        yield made


def deleted(_: int, deletions: Sequence[PartitionDeletion]) -> list[PartitionDeletionResult]:
    """Answer that the records are deleted everywhere."""
    return [
        PartitionDeletionResult(partition=deletion.partition, low_watermark=deletion.offset)
        for deletion in deletions
    ]


def points(_: int, queries: Sequence[DeletionPointQuery]) -> list[DeletionPoint]:
    """Answer for a log of a hundred records of 7 bytes, in segments of ten."""
    offsets = {query.partition: query.before_offset for query in queries}
    return [
        DeletionPoint(
            partition=part,
            log_start_offset=0,
            high_watermark=100,
            offset=100 if offset < 0 else offset,
            last_epoch=0,
            size_bytes=70 * ((100 if offset < 0 else offset) // 10),
        )
        for part, offset in offsets.items()
    ]


def request_deletion(world: ShellWorld, before: int = 40, **spec: Any) -> None:
    base = {"topicRef": {"name": "t"}, "partitions": [{"partition": 0, "beforeOffset": before}]}
    world.make(RECORD_DELETION, "d", base | spec)


async def run(world: ShellWorld, turns: int = 4) -> None:
    for _ in range(turns):
        await RecordDeletionReconciler(world.services).reconcile(D)


def bump_leader_epoch(world: ShellWorld) -> None:
    """Raise the partition's leader epoch, as an election does."""
    state = world.services.state
    (key,) = state.partitions.keys_on(1)
    row = state.row(key)
    assert row is not None
    state.put_row(replace(row, leader_epoch=row.leader_epoch + 1))


def deletions(world: ShellWorld) -> list[Any]:
    return [
        {deletion.partition: deletion.offset for deletion in request}
        for method, _, request in world.engine.requests
        if method == "delete_records"
    ]


async def test_offsets_are_in_the_status_before_records_are_deleted(
    world: ShellWorld,
) -> None:
    request_deletion(world)
    # The status write fails: no offset may be used that a restart would forget.
    world.api.fail("replace_status RecordDeletion", Conflict(409, "modified"))
    with pytest.raises(Conflict):
        await run(world, 1)
    assert deletions(world) == []
    await run(world)
    assert deletions(world) == [{0: 40}]
    status = world.status(RECORD_DELETION, "d")
    assert [point["offset"] for point in status["resolved"]] == [40]
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"


async def test_once_finished_it_never_deletes_again(world: ShellWorld) -> None:
    request_deletion(world)
    await run(world)
    before = len(world.engine.requests)
    await run(world)
    assert len(world.engine.requests) == before


async def test_an_unreachable_leader_is_waited_for(world: ShellWorld) -> None:
    request_deletion(world, before=-1)
    # The leader is disconnected when the offsets are requested.
    world.engine.reachable.clear()
    await run(world, 1)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "Unknown"
    world.engine.reachable.add(1)
    await run(world)
    assert deletions(world) == [{0: 100}], "-1 is the high watermark at that moment"


async def test_a_slow_leader_receives_the_same_request_again(world: ShellWorld) -> None:
    request_deletion(world)
    done = world.engine.answers["delete_records"]
    # The leader answers with REQUEST_TIMED_OUT: some followers lag behind.
    late = PartitionDeletionResult(partition=0, error_code=ErrorCode.request_timed_out.value)
    world.engine.answers["delete_records"] = lambda _, __: [late]
    await run(world, 2)
    world.engine.answers["delete_records"] = done
    await run(world, 2)
    # The repeated request has the frozen offset, so that it is idempotent.
    assert set(map(str, deletions(world))) == {"{0: 40}"}
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"


async def test_finished_deletion_is_removed_after_its_ttl(world: ShellWorld) -> None:
    request_deletion(world, ttlAfterFinished="0s")
    # Deliver the deletion of the object like a watch.
    world.server.watchers.append(lambda body, gone: gone and world.services.objects.remove(body))
    await run(world, 6)
    assert world.server.find(RECORD_DELETION, "d") is None
    assert deletions(world) == [{0: 40}]


async def test_a_deletion_without_its_topic_waits_and_fails_after_its_timeout(
    world: ShellWorld,
) -> None:
    # A hundred years, since the fake server's creation times are long ago.
    request_deletion(world, topicRef={"name": "nothing"}, timeout="876000h")
    await run(world)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[:2] == ("Unknown", "TopicNotFound")
    for given in ({"timeout": "0s"}, {}):  # without a timeout, the default applies
        world.delete(RECORD_DELETION, "d")
        request_deletion(world, topicRef={"name": "nothing"}, **given)
        await run(world)
        status, reason, message = world.condition(RECORD_DELETION, "d", "Succeeded")
        assert (status, reason) == ("False", "Timeout")
        assert "Topic ns/nothing, which does not exist" in message
        assert world.condition(RECORD_DELETION, "d", "Stalled")[0] == "True"
    assert deletions(world) == []


async def test_a_deletion_continues_once_its_topic_exists_and_is_placed(world: ShellWorld) -> None:
    request_deletion(world, topicRef={"name": "later"}, timeout="876000h")
    await run(world, 1)
    status, reason, message = world.condition(RECORD_DELETION, "d", "Succeeded")
    assert (status, reason) == ("Unknown", "TopicNotFound")
    assert "ns/later" in message
    world.make_topic("later")
    await run(world, 1)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[:2] == ("Unknown", "TopicNotReady")
    await TopicReconciler(world.services).reconcile(world.key(TOPIC, "later"))
    await run(world)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"


async def test_a_dry_run_counts_records_and_bytes_of_each_partition(world: ShellWorld) -> None:
    request_deletion(world, before=45, dryRun=True)
    await run(world)
    # 45 records, but only the four whole segments below offset 45 free bytes.
    status = world.status(RECORD_DELETION, "d")
    assert (status["records"], status["bytes"]) == (45, 280)
    (point,) = status["resolved"]
    assert (point["records"], point["bytes"]) == (45, 280)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[:2] == ("True", "DryRun")
    assert deletions(world) == []


async def test_records_that_replaced_lost_ones_are_not_deleted(world: ShellWorld) -> None:
    """After an unclean election, the new leader has other records at these offsets."""
    request_deletion(world)
    # Freeze the offset, then elect a leader that lost the records from 30.
    await run(world, 1)
    lost = int(ErrorCode.offset_out_of_range.value)
    world.engine.answers["delete_records"] = lambda *_: [
        PartitionDeletionResult(partition=0, error_code=lost, lost_from_offset=30)
    ]
    bump_leader_epoch(world)
    await run(world, 2)
    status, reason, message = world.condition(RECORD_DELETION, "d", "Succeeded")
    assert (status, reason) == ("False", "PartitionsFailed")
    assert "records below 40 were lost in an unclean election, from 30 on" in message


async def test_after_a_clean_election_the_deletion_continues(world: ShellWorld) -> None:
    request_deletion(world)
    await run(world, 1)
    bump_leader_epoch(world)
    await run(world, 2)
    assert deletions(world) == [{0: 40}]
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"


async def test_paused_deletion_deletes_nothing(world: ShellWorld) -> None:
    request_deletion(world)
    world.annotate(RECORD_DELETION, "d", **{"tidemark.dev/paused": "true"})
    await run(world)
    assert deletions(world) == []
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[:2] == ("Unknown", "Paused")


async def test_kstatus_waits_for_a_record_deletion_until_it_has_finished(world: ShellWorld) -> None:
    def verdict() -> kstatus.StatusVerdict:
        return kstatus.verdict(world.known(RECORD_DELETION, "d"))

    # The leader does not answer while the deletion is pending.
    delete = world.engine.answers.pop("delete_records")
    request_deletion(world)
    await run(world)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[:2] == ("Unknown", "Deleting")
    assert verdict() is kstatus.StatusVerdict.IN_PROGRESS
    world.annotate(RECORD_DELETION, "d", **{"tidemark.dev/paused": "true"})
    await run(world)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[:2] == ("Unknown", "Paused")
    assert verdict() is kstatus.StatusVerdict.IN_PROGRESS
    world.annotate(RECORD_DELETION, "d")
    world.engine.answers["delete_records"] = delete
    await run(world)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "True"
    assert verdict() is kstatus.StatusVerdict.CURRENT


async def test_a_record_deletion_that_fails_has_failed_for_kstatus(world: ShellWorld) -> None:
    request_deletion(world, partitions=[{"partition": 7, "beforeOffset": 1}])
    await run(world)
    assert world.condition(RECORD_DELETION, "d", "Succeeded")[0] == "False"
    assert kstatus.verdict(world.known(RECORD_DELETION, "d")) is kstatus.StatusVerdict.FAILED


async def test_records_of_a_later_leader_epoch_than_the_spec_are_kept(world: ShellWorld) -> None:
    world.engine.answers["deletion_points"] = lambda *call: [
        replace(point, last_epoch=2) for point in points(*call)
    ]
    request_deletion(world, partitions=[{"partition": 0, "beforeOffset": 40, "leaderEpoch": 1}])
    await run(world)
    assert deletions(world) == []
    assert "later than leaderEpoch 1" in str(world.status(RECORD_DELETION, "d"))
