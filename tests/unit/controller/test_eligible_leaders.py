"""Eligible leader replicas (KIP-966): replicas with all committed records outside a small ISR.

They decide who leads when the last ISR member returns without proof of a complete log.
"""

import dataclasses
import itertools
import uuid

import pytest
from kio.schema.errors import ErrorCode

from tests.unit.controller.controller_world import (
    ControllerWorld,
    alter,
    broker,
    fence,
    messages,
    numbered_uuid,
    ready,
    report_log,
    row,
    topic,
)
from tidemark.wire.control import ReplicaLog, ReplicaLogInfoResponse
from tidemark_operator.controller import elections, registration, replica_logs, snapshot
from tidemark_operator.controller.state.model import PartitionRow, RowKey

MIN_2 = {"min.insync.replicas": "2"}
UNCLEAN = {"unclean.leader.election.enable": "true"}
KEY = (numbered_uuid(1), 0)


def _world(config: dict[str, str] | None = None, **fields: object) -> ControllerWorld:
    return ControllerWorld(
        brokers=[broker(1), broker(2), broker(3)],
        topics=[topic(config=MIN_2 if config is None else config, partitions_placed=1)],
        rows=[row((1, 2, 3), **fields)],  # type: ignore[arg-type]
    )


def _sets(made: PartitionRow) -> tuple[tuple[int, ...], ...]:
    return made.isr, made.elr, made.last_known_elr


def _crash(world: ControllerWorld, node_id: int) -> None:
    """Restart and unfence a broker without proof of a clean shutdown."""
    world.register(node_id, incarnation=90_000 + next(_numbers))
    world.beat(node_id)


_numbers = itertools.count()


# ---------------------------------------------------------------- the sets


def test_a_replica_that_leaves_the_isr_below_the_minimum_stays_eligible() -> None:
    world = _world()
    alter(world, 1, 2)
    assert _sets(world.row()) == ((1, 2), (), ())
    alter(world, 1)
    assert _sets(world.row()) == ((1,), (2,), ())
    # With two in sync again, the high watermark advances without the eligible replicas.
    alter(world, 1, 3)
    assert _sets(world.row()) == ((1, 3), (), ()), "enough are in sync: the watermark moves on"


def test_a_fenced_broker_stays_eligible_too() -> None:
    world = _world()
    fence(world, 3)
    fence(world, 2)
    assert _sets(world.row()) == ((1,), (2,), ())


def test_without_proof_an_eligible_replica_is_only_last_known() -> None:
    world = _world(isr=(1,), elr=(2, 3))
    world.register(2, incarnation=5)
    assert _sets(world.row()) == ((1,), (3,), (2,))
    # The previous broker epoch proves a clean shutdown.
    world.register(3, incarnation=6, previous=103)
    assert _sets(world.row()) == ((1,), (3,), (2,)), "a proof keeps it eligible"


def test_replica_in_a_new_directory_is_in_no_set() -> None:
    world = _world(isr=(1,), elr=(2,), last_known_elr=(3,))
    world.register(2, incarnation=5, directory=77)
    world.register(3, incarnation=6, directory=78)
    assert _sets(world.row()) == ((1,), (), ())
    # The last ISR member returns with an empty disk as well.
    world.register(1, incarnation=7, directory=79)
    assert world.row().holders == ()


def test_the_effective_minimum_is_never_above_the_replication_factor() -> None:
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(replication_factor=1, config=MIN_2)],
        rows=[row((1,))],
    )
    fence(world, 1)
    assert _sets(world.row()) == ((1,), (), ())


def test_an_unclean_leader_has_no_eligible_replicas_until_it_has_recovered() -> None:
    world = _world({**MIN_2, **UNCLEAN}, isr=(1,), last_known_elr=(2,))
    fence(world, 1)
    assert (world.row().leader, world.row().recovering) == (2, True)
    assert _sets(world.row()) == ((2,), (), ())


@pytest.mark.parametrize("lowered", [{"min.insync.replicas": "1"}, {}])
def test_lower_min_isr_clears_eligible_leaders(
    lowered: dict[str, str],
) -> None:
    """The leader blocks while its row has eligible leaders, whatever minimum it has received."""
    world = _world(isr=(1,), elr=(2, 3))
    assert _shown(world)
    assert pushed_eligible_leaders(world) == ((2, 3), ())
    # The controller knows the new minimum, but the row is unchanged until it decides.
    world.state.put_topic(dataclasses.replace(world.view(), config=lowered))
    assert _shown(world)
    draft = world.draft()
    elections.settle_topic(draft, world.view())
    world.commit(draft)
    assert _sets(world.row()) == ((1,), (), ())
    assert not _shown(world)


def test_a_larger_minimum_changes_nothing_before_the_isr_does() -> None:
    world = _world({}, isr=(1,))
    world.state.put_topic(dataclasses.replace(world.view(), config=MIN_2))
    draft = world.draft()
    elections.settle_topic(draft, world.view())
    assert world.commit(draft).empty


def pushed_eligible_leaders(world: ControllerWorld) -> tuple[tuple[int, ...], tuple[int, ...]]:
    (pushed,) = snapshot.full(world.state).topics[0].partitions
    return pushed.elr, pushed.last_known_elr


def _shown(world: ControllerWorld) -> bool:
    (shown,) = snapshot.full(world.state).topics[0].partitions
    return shown.has_eligible_leaders


# ---------------------------------------------------------------- elections


def test_a_live_eligible_replica_leads_and_that_is_clean() -> None:
    world = _world(isr=(1,), elr=(2, 3))
    fence(world, 1)
    assert (world.row().leader, world.row().recovering) == (2, False)
    assert _sets(world.row()) == ((2,), (1, 3), ())


def test_last_member_without_proof_yields_to_an_eligible_replica() -> None:
    """The disk of the last member lost records that the two other replicas have."""
    world = _world(isr=(1,), elr=(2, 3))
    _crash(world, 1)
    assert world.row().leader == 2
    assert world.row().isr == (2,)


@pytest.mark.parametrize("order", list(itertools.permutations((1, 2, 3))))
def test_replica_that_lost_its_tail_does_not_lead_after_a_power_cut(order: tuple[int, ...]) -> None:
    """RF 3, minimum 2: all stop; broker 3, the last of the ISR, lost 200 records that 2 has."""
    world = _world()
    fence(world, 1)
    fence(world, 2)
    fence(world, 3)
    assert _sets(world.row()) == ((3,), (2,), ())
    # Broker 3 acknowledged up to 1000 and lost its tail, like broker 1.
    ends = {1: 800, 2: 1000, 3: 800}
    for node_id in order:
        _crash(world, node_id)
        # Brokers answer with their log ends only while they are queried.
        if KEY in world.replica_logs.unanswered(world.state, node_id):
            report_log(world, node_id, 1, ends[node_id])
        assert world.row().leader in (-1, 2)
    assert world.row().leader == 2
    assert world.row().leader_epoch > 1


def test_an_election_by_log_waits_until_enough_have_reported() -> None:
    world = _world(isr=(1,), last_known_elr=(2,))
    _crash(world, 1)
    assert _sets(world.row()) == ((), (), (1, 2))
    assert world.row().leader == -1
    report_log(world, 1, 4, 90)
    assert world.row().leader == -1
    events = report_log(world, 2, 4, 120)
    assert (world.row().leader, world.row().recovering) == (2, False)
    assert _sets(world.row()) == ((2,), (), (1,))
    assert "LongestLogElected" in {event.reason for event in events}


def test_min_isr_reports_are_enough_without_the_last_member() -> None:
    """Fewer replicas than the minimum lose unsynced data at once, so one of two is complete."""
    world = _world(leader=-1, isr=(3,), last_known_elr=(1, 2))
    fence(world, 3)
    report_log(world, 1, 4, 90)
    # Broker 2 has more records, but of an older leader epoch.
    report_log(world, 2, 3, 900)
    assert world.row().leader == 1, "a later epoch counts more than a longer log"
    assert _sets(world.row()) == ((1,), (3,), (2,))


def test_min_isr_one_needs_every_holder() -> None:
    world = _world({}, leader=-1)
    fence(world, 1, 2, 3)
    _crash(world, 1)
    _crash(world, 2)
    # Brokers 1 and 2 may be stale: with a minimum of 1, broker 3 may have continued alone.
    assert _sets(world.row()) == ((3,), (), (1, 2))
    report_log(world, 1, 4, 90)
    report_log(world, 2, 4, 80)
    assert world.row().leader == -1
    _crash(world, 3)
    report_log(world, 3, 4, 70)
    assert (world.row().leader, _sets(world.row())) == (1, ((1,), (), ()))


def test_absent_eligible_replica_is_waited_for() -> None:
    world = _world({"min.insync.replicas": "3"}, isr=(1,), elr=(2,))
    fence(world, 2)
    _crash(world, 1)
    report_log(world, 1, 4, 90)
    assert world.row().leader == -1
    # Broker 2 shut down cleanly, so it is still eligible and leads.
    world.register(2, incarnation=8, previous=102)
    world.beat(2)
    assert world.row().leader == 2


def test_reports_of_a_former_process_or_of_a_former_epoch_do_not_count() -> None:
    world = _world(isr=(1,), last_known_elr=(2,))
    _crash(world, 1)
    report_log(world, 1, 4, 90)
    # Broker 1 restarts again, so its former answer is void.
    _crash(world, 1)
    report_log(world, 2, 4, 80)
    assert world.row().leader == -1
    assert world.replica_logs.unanswered(world.state, 1) == [KEY]
    report_log(world, 1, 4, 70, leader_epoch=world.row().leader_epoch - 1)
    assert world.row().leader == -1
    report_log(world, 1, 4, 70)
    assert world.row().leader == 2


def test_a_replica_with_failed_storage_does_not_count_and_is_queried_again() -> None:
    world = _world(isr=(1,), last_known_elr=(2,))
    _crash(world, 1)
    report_log(world, 1, 4, 90)
    # 56 is KAFKA_STORAGE_ERROR: broker 2 cannot read its log.
    report_log(world, 2, -1, -1, error_code=56)
    assert world.row().leader == -1
    assert world.replica_logs.unanswered(world.state, 2) == [KEY]
    report_log(world, 2, 4, 95)
    assert world.row().leader == 2


def test_replicas_with_failed_storage_do_not_prevent_queries_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """There may be more replicas than one request contains."""
    # Five partitions in requests of two: failing ones must not occupy every request.
    monkeypatch.setattr(replica_logs, "ASKED_MAX", 2)
    keys = [(numbered_uuid(1), number) for number in range(5)]
    world = ControllerWorld(
        brokers=[broker(1), broker(2)],
        topics=[topic(config=MIN_2, partitions_placed=5)],
        rows=[row((1, 2), partition=number, isr=(1,), last_known_elr=(2,)) for number in range(5)],
    )
    _crash(world, 1)
    _crash(world, 2)
    queried: list[tuple[uuid.UUID, int]] = []
    for _ in range(3):
        unanswered = world.replica_logs.unanswered(world.state, 1)
        assert unanswered == world.replica_logs.unanswered(world.state, 1)
        queried += unanswered
        logs = tuple(_refusing(key) for key in unanswered)
        epoch = world.state.brokers[1].broker_epoch
        answer = ReplicaLogInfoResponse(error_code=0, broker_epoch=epoch, logs=logs)
        world.replica_logs.take(world.state, 1, answer)
    # The requests rotate through all partitions.
    assert queried == [*keys, keys[0]]


def _refusing(key: RowKey) -> ReplicaLog:
    return ReplicaLog(
        topic_id=key[0],
        partition=key[1],
        error_code=int(ErrorCode.kafka_storage_error),
        leader_epoch=-1,
        last_epoch=-1,
        next_offset=-1,
    )


def test_unclean_election_waits_for_a_possible_clean_one() -> None:
    world = _world({**MIN_2, **UNCLEAN}, isr=(1,), last_known_elr=(2,))
    _crash(world, 1)
    assert world.row().leader == -1
    report_log(world, 1, 4, 90)
    # Broker 2 fails permanently, so the unclean election proceeds.
    report_log(world, 2, -1, -1, error_code=56)
    assert (world.row().leader, world.row().recovering) == (1, True)


def test_only_holder_leads_without_proof() -> None:
    for config, isr in (({}, (1,)), (MIN_2, (1,))):
        world = _world(config, isr=isr)
        _crash(world, 1)
        assert (world.row().leader, _sets(world.row())) == (1, ((1,), (), ()))


def test_a_removed_broker_is_in_no_set_and_an_eligible_one_takes_over() -> None:
    world = _world(isr=(1,), elr=(2,), last_known_elr=(3,))
    # Both Brokers are deleted: only the eligible replica remains.
    for node_id in (3, 1):
        draft = world.draft()
        registration.remove_broker(draft, node_id)
        world.commit(draft)
    assert (world.row().leader, _sets(world.row())) == (2, ((2,), (), ()))


# ---------------------------------------------------------------- requests and pushed states


def test_replicas_are_queried_only_while_an_election_waits_for_them() -> None:
    world = _world(isr=(1,), last_known_elr=(2,))
    assert world.replica_logs.unanswered(world.state, 2) == []
    _crash(world, 1)
    assert world.replica_logs.unanswered(world.state, 1) == [KEY]
    assert world.replica_logs.unanswered(world.state, 2) == [KEY]
    assert world.replica_logs.unanswered(world.state, 3) == []
    report_log(world, 2, 4, 80)
    assert world.replica_logs.unanswered(world.state, 2) == []
    report_log(world, 1, 4, 70)
    assert world.replica_logs.unanswered(world.state, 1) == []


def test_lost_records_are_reported_once_with_their_range() -> None:
    world = _world({}, isr=(1,))
    _crash(world, 1)
    assert world.replica_logs.unanswered(world.state, 1) == [KEY], (
        "it leads, and may have lost some"
    )
    lost = {"lost_start_offset": 800, "lost_end_offset": 1000}
    (event,) = report_log(world, 1, 4, 800, **lost)
    assert (event.reason, event.type.value, event.key) == ("RecordsLost", "Warning", "ns/topic-1")
    assert "broker 1" in event.message
    assert "partition 0 offsets 800 to 999" in event.message
    assert report_log(world, 1, 4, 800, **lost) == []
    assert world.replica_logs.unanswered(world.state, 1) == []


def test_after_a_clean_start_nothing_is_requested() -> None:
    world = _world(isr=(1,))
    world.register(1, incarnation=5, previous=101)
    world.beat(1)
    assert world.replica_logs.unanswered(world.state, 1) == []


# ---------------------------------------------------------------- conditions and messages


def test_pending_election_names_brokers_and_remedies() -> None:
    world = _world(isr=(3,), elr=(2,), last_known_elr=(1,))
    fence(world, 2)
    # Broker 3 is live but has not reported, broker 1 fails to, and broker 2 is down.
    _crash(world, 3)
    report_log(world, 1, -1, -1, error_code=56)
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "ElectionPending")
    assert ready(result)["Stalled"] == ("False", "Progressing")
    text = messages(result)["Ready"]
    for part in (
        "partition 0 has no leader",
        "brokers 1, 3 may have lost",
        "start broker 2",
        "repair the log directory of broker 1",
        "wait for the log reports of broker 3",
        "unclean.leader.election.enable",
    ):
        assert part in text
    draft = world.draft()
    elections.unfence(draft, 2)
    world.commit(draft)
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")


def test_unclean_election_resolves_a_pending_election() -> None:
    world = _world(isr=(3,), last_known_elr=(1,))
    fence(world, 3)
    report_log(world, 1, 4, 90)
    assert ready(world.reconcile())["Ready"] == ("False", "ElectionPending")
    # The user follows the message, and accepts the loss.
    world.state.put_topic(dataclasses.replace(world.view(), config={**MIN_2, **UNCLEAN}))
    assert ready(world.reconcile())["Ready"] == ("True", "Serving")
    assert (world.row().leader, world.row().recovering) == (1, True)


def test_a_partition_without_live_replicas_names_the_brokers_to_start() -> None:
    world = _world(isr=(3,), elr=(2,))
    fence(world, 2, 3)
    result = world.reconcile()
    assert ready(result)["Ready"] == ("False", "PartitionsOffline")
    assert "start brokers 2, 3 " in messages(result)["Ready"]


def test_an_unclean_election_is_named_only_where_it_would_find_a_leader() -> None:
    world = _world(isr=(3,), elr=(2,))
    fence(world, 2, 3)
    assert "unclean.leader.election.enable" in messages(world.reconcile())["Ready"]
    world = ControllerWorld(
        brokers=[broker(1)], topics=[topic(replication_factor=1)], rows=[row((1,))]
    )
    fence(world, 1)
    assert messages(world.reconcile())["Ready"] == (
        "partition 0 has no leader: start broker 1 (the last with all records), or delete its "
        "Broker if it never returns"
    )


def test_a_partition_without_any_holder_is_lost_not_waiting() -> None:
    world = _world(isr=(1,), last_known_elr=(2,))
    world.register(1, incarnation=5, directory=77)
    assert ready(world.reconcile())["Ready"] == ("False", "ElectionPending")
    world.register(2, incarnation=6, directory=78)
    assert ready(world.reconcile())["Ready"] == ("False", "LastCopyMissing")
