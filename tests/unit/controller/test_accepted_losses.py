"""Losses that a user accepts by name: a copy that lacks records, a lost log directory."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import (
    ControllerWorld,
    broker,
    fence,
    messages,
    numbered_uuid,
    ready,
    report_log,
    row,
    topic,
)
from tidemark.annotations import ACCEPT_COPY, ACCEPT_LOST_DIRECTORY
from tidemark.ids import id_text
from tidemark.wire.control import ReplicaLog
from tidemark_operator.controller import accepted_losses, registration
from tidemark_operator.controller.accepted_losses import Copy, offer_text
from tidemark_operator.controller.status import StatusResult
from tidemark_operator.controller.status.conditions import MESSAGE_CHARS_MAX
from tidemark_operator.controller.status.offline_partitions import no_leader

ID = id_text(numbered_uuid(1))
MIN_2 = {"min.insync.replicas": "2"}


def lost_copy_world(**fields: object) -> ControllerWorld:
    """Return a world in which the last complete copy was in broker 1's former directory."""
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(replication_factor=2, partitions_placed=1, topic_id=numbered_uuid(1))],
        rows=[row((1, 2), isr=(1,), leader_epoch=4, **fields)],
    )
    # Broker 1 loses its disk: it registers with a new, empty log directory.
    fence(world, 1)
    world.register(1, incarnation=77, directory=99)
    world.beat(1)
    assert world.row().holders == ()
    return world


def annotate(world: ControllerWorld, text: str) -> None:
    world.state.put_topic(dataclasses.replace(world.view(), annotations={ACCEPT_COPY: text}))


def offered_value(result: StatusResult) -> str:
    """Return the annotation's value that the message offers."""
    message = messages(result)["Ready"]
    assert f"{ACCEPT_COPY}: " in message
    return message.rpartition(f"{ACCEPT_COPY}: ")[2].split(" ")[0]


def test_every_replica_of_a_lost_partition_is_queried_for_its_log_end() -> None:
    world = lost_copy_world()
    assert world.replica_logs.unanswered(world.state, 2) == [world.row().key]
    assert world.replica_logs.unanswered(world.state, 1) == [world.row().key]


def test_offered_copy_is_the_longest_and_accepting_it_elects_it() -> None:
    world = lost_copy_world()
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "LastCopyMissing")
    # Nothing is offered before both log ends are known.
    assert ACCEPT_COPY not in messages(result)["Ready"]
    # The empty log of broker 1, and 700 records on broker 2.
    report_log(world, 1, -1, 0)
    report_log(world, 2, 4, 700)
    assert world.row().leader == -1
    offered = offered_value(world.reconcile())
    assert offered == f"{ID}/0=2@{world.row().leader_epoch}:700"
    annotate(world, offered)
    result = world.reconcile()
    (record,) = result.status["accepted"]  # type: ignore[misc]
    assert (record["annotation"], record["value"]) == (ACCEPT_COPY, offered)
    # The acceptance is recorded in the status before it takes effect.
    assert world.row().leader == -1, "it is recorded first"
    result = world.reconcile()
    assert (world.row().leader, world.row().isr, world.row().recovering) == (2, (2,), True)
    assert ready(result)["Ready"] == ("True", "Serving")


def test_an_accepted_copy_is_reported() -> None:
    world = lost_copy_world()
    report_log(world, 2, 4, 700)
    annotate(world, offered_value(world.reconcile()))
    world.reconcile()
    draft = world.draft()
    accepted_losses.settle(draft, world.view())
    assert [event.reason for event in draft.events] == ["CopyAccepted"]
    assert "up to offset 700 on broker 2" in draft.events[0].message


@pytest.mark.parametrize(
    "wrong",
    [
        ID + "/0=2@{epoch}:701",
        ID + "/0=2@{before}:700",
        ID + "/0=1@{epoch}:700",
        ID + "/1=2@{epoch}:700",
        id_text(numbered_uuid(2)) + "/0=2@{epoch}:700",
        "0=2@{epoch}:700",
        "all",
    ],
    ids=["offset", "epoch", "broker", "partition", "another topic", "no topic", "nonsense"],
)
def test_wrong_copy_is_refused_and_the_right_one_offered(wrong: str) -> None:
    world = lost_copy_world()
    report_log(world, 2, 4, 700)
    epoch = world.row().leader_epoch
    annotate(world, wrong.format(epoch=epoch, before=epoch - 1))
    message = messages(world.reconcile())["Ready"]
    assert "which does not match the current state" in message
    assert f"{ACCEPT_COPY}: {ID}/0=2@{epoch}:700" in message
    world.reconcile()
    assert world.row().leader == -1


@pytest.mark.parametrize("length", [1025, 262_144], ids=["one-more", "as-the-api-takes"])
def test_oversized_value_is_refused_and_a_valid_one_offered(
    length: int,
) -> None:
    """A truncated record never matches the annotation: the status would be written endlessly."""
    world = lost_copy_world()
    report_log(world, 2, 4, 700)
    offered = offered_value(world.reconcile())
    # The offered value, padded with further entries up to the length.
    annotate(world, f"{offered};".ljust(length, "x"))
    assert world.decide().recheck_ms is None
    result = world.reconcile()
    assert "accepted" not in result.status
    assert f"has {length} characters, the limit is 1024. Name fewer" in messages(result)["Ready"]
    assert messages(result)["Ready"].endswith(offered)


def test_long_wrong_value_leaves_room_for_the_offer() -> None:
    world = lost_copy_world()
    report_log(world, 2, 4, 700)
    offered = offered_value(world.reconcile())
    annotate(world, "x" * 1000)
    assert messages(world.reconcile())["Ready"].endswith(offered)


@pytest.mark.parametrize("reason", ["LastCopyMissing", "ElectionPending"])
def test_offer_for_many_partitions_is_complete_entries(reason: str) -> None:
    far = 10**15
    fields = {} if reason == "LastCopyMissing" else {"last_known_elr": (12345,)}
    isr = () if reason == "LastCopyMissing" else (54321,)
    # Forty offline partitions, whose full offer would exceed a condition's message.
    rows = [
        row((12345, 54321), leader=-1, isr=isr, leader_epoch=1234, partition=part, **fields)
        for part in range(1000, 1040)
    ]
    world = ControllerWorld(
        brokers=[broker(12345), broker(54321, fenced=True)],
        topics=[topic(partitions=1040, replication_factor=2, topic_id=numbered_uuid(1))],
        rows=rows,
    )
    # Every partition has a copy on broker 12345, with large numbers to make the text long.
    for made in rows:
        epoch = world.state.brokers[12345].broker_epoch
        report = ReplicaLog(
            topic_id=made.topic_id,
            partition=made.partition,
            error_code=0,
            last_epoch=1234,
            next_offset=far,
            leader_epoch=1234,
        )
        world.state.log_reports[made.key] = {12345: (epoch, report)}
    text = offer_text(world.state, world.view(), rows)
    conditions = no_leader(world.state, world.view(), rows) if isr else []
    for message in [text, *(condition.message for condition in conditions[:1])]:
        offered = message.rpartition(f"{ACCEPT_COPY}: ")[2].split(" ")[0]
        assert len(message) <= MESSAGE_CHARS_MAX
        assert 1 < len(accepted_losses.parse_copies(offered, numbered_uuid(1))) < 40
        assert "more follow" in message


def test_remaining_annotation_accepts_no_later_loss() -> None:
    """The same copy with the same length is offered again under a later epoch."""
    world = lost_copy_world()
    report_log(world, 2, 4, 700)
    annotate(world, offered_value(world.reconcile()))
    world.reconcile()
    world.reconcile()
    # The accepted copy is lost too: broker 2 returns with an empty directory.
    fence(world, 2)
    world.register(2, incarnation=78, directory=98)
    world.beat(2)
    assert world.row().holders == ()
    # A copy of equal length exists again, but of a later leader epoch.
    report_log(world, 2, 4, 700)
    assert ready(world.reconcile())["Ready"] == ("False", "LastCopyMissing")
    world.reconcile()
    assert world.row().leader == -1


def test_copy_is_accepted_while_an_election_waits_for_another() -> None:
    """Two of three brokers return from a power cut. The third one and its log are lost."""
    world = ControllerWorld(
        brokers=[broker(1, fenced=True), broker(2, fenced=True), broker(3, fenced=True)],
        topics=[topic(config={"min.insync.replicas": "3"}, partitions_placed=1)],
        # KIP-966: brokers 1 and 2 were eligible leaders, broker 3 was the last in the ISR.
        rows=[row((1, 2, 3), leader=-1, isr=(3,), last_known_elr=(1, 2), leader_epoch=4)],
    )
    for node_id in (1, 2):
        world.register(node_id, incarnation=70 + node_id)
        world.beat(node_id)
    # Both answers are known: broker 1 has more records.
    report_log(world, 1, 4, 600)
    report_log(world, 2, 4, 500)
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "ElectionPending")
    offered = offered_value(result)
    assert offered == f"{ID}/0=1@4:600"
    annotate(world, offered)
    world.reconcile()
    world.reconcile()
    assert (world.row().leader, world.row().recovering) == (1, True)


def test_several_partitions_are_accepted_with_one_value() -> None:
    assert accepted_losses.parse_copies(f"{ID}/0=2@5:700, 3=1@6:0;x", numbered_uuid(1)) == [
        Copy(0, 2, 5, 700),
        Copy(3, 1, 6, 0),
    ]


# ---------------------------------------------------------------- dead Brokers


def test_a_dead_broker_is_given_up_by_directory_and_registration_only() -> None:
    dead = broker(1, fenced=True)
    # The value names the directory and the registration of the dead broker.
    asked = {ACCEPT_LOST_DIRECTORY: accepted_losses.lost_directory(dead)}
    assert not accepted_losses.is_given_up(dead)
    assert accepted_losses.is_given_up(dataclasses.replace(dead, annotations=asked))
    for other in (
        dataclasses.replace(dead, annotations=asked, broker_epoch=dead.broker_epoch + 1),
        dataclasses.replace(dead, annotations=asked, directory_id=numbered_uuid(3)),
        dataclasses.replace(dead, annotations=asked, fenced=False),
    ):
        assert not accepted_losses.is_given_up(other)


def test_a_partition_without_any_replica_restarts_where_a_user_accepts_the_loss() -> None:
    world = ControllerWorld(
        brokers=[broker(1, fenced=True), broker(3)],
        topics=[topic(replication_factor=1, partitions_placed=1, topic_id=numbered_uuid(1))],
        rows=[row((1,), leader=-1, leader_epoch=4)],
    )
    # The Broker was given up, which removes its replica: the partition has no host.
    draft = world.draft()
    registration.remove_broker(draft, 1)
    world.commit(draft)
    world.state.drop_broker(1)
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "LastCopyMissing")
    assert "partition 0 starts empty on broker 3" in messages(result)["Ready"]
    annotate(world, offered_value(result))
    world.reconcile()
    # The next decision places the partition on the remaining broker.
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")
    assert (world.row().replicas, world.row().leader) == ((3,), 3)


def test_deleted_partitions_are_not_queried() -> None:
    world = lost_copy_world()
    report_log(world, 2, 4, 700)
    world.state.remove_row(world.row().key)
    world.replica_logs.forget_gone(world.state)
    assert all(not start.answered for start in world.replica_logs._starts.values())
    assert world.replica_logs.unanswered(world.state, 1) == []
    assert not world.state.log_reports
