"""Brokers that lose unsynced records, their disks, or their Broker objects: which replica leads."""

import pytest

from tests.integration.operator.broker_peer import BrokerPeer, ControllerRefused
from tests.integration.operator.cluster_world import ClusterWorld, condition_of
from tests.integration.operator.operator_process import OperatorProcess
from tidemark.wire import control
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.controller.state.rows import decode_row
from tidemark_operator.kube.kinds import BROKER, TOPIC

pytestmark = pytest.mark.full

T = ("t", 0)
MIN_2 = {"min.insync.replicas": "2"}
#: Long: whatever happens within a test does not wait for a session to end.
SESSION_S = 600.0


async def _three(world: ClusterWorld, operator: OperatorProcess) -> dict[int, BrokerPeer]:
    """Brokers 1, 2 and 3, and a topic on them that needs two in sync."""
    peers = {node: await world.start_broker(node, operator) for node in (1, 2, 3)}
    await world.create_topic("t", replicas=3, config=MIN_2)
    await world.until(lambda: all(T in peer.rows for peer in peers.values()), "placed")
    return peers


async def _row(world: ClusterWorld) -> PartitionRow:
    (text,) = await world.rows()
    return decode_row(text)


async def _back(
    world: ClusterWorld, operator: OperatorProcess, peer: BrokerPeer, end: int
) -> BrokerPeer:
    """Return the next process of a crashed broker, whose log ends at ``end``."""
    # Not a clean shutdown, so the log may end early.
    again = peer.restarted(clean=False)
    # (last leader epoch, log end), which ReplicaLogInfo returns.
    again.logs[T] = (5, end)
    if end < 1000:
        # The broker has noticed that it lost everything between its end and 1000.
        again.lost[T] = (end, 1000)
    return await world.start_peer(again, operator)


async def test_longest_log_leads_after_a_power_cut(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator(session_timeout_s=SESSION_S)
    peers = await _three(world, operator)
    # Brokers die one after another: the first leader, then the other follower, then the last one.
    first = peers[1].rows[T].leader
    last, other = sorted(set(peers) - {first})
    await peers[first].close()
    await world.until(lambda: peers[last].rows[T].leader in (last, other), "another leads")
    await peers[other].close()
    await world.until(lambda: peers[last].rows[T].isr == (last,), "one is left in sync")
    # min.insync.replicas is 2, so the broker that left the ISR stays eligible (KIP-966).
    assert peers[last].rows[T].has_eligible_leaders
    assert (await _row(world)).elr == (other,)
    await peers[last].close()
    await world.condition(TOPIC, "t", "Ready", "False", "PartitionsOffline")

    # The last member of the ISR returns with a truncated log: it must not lead yet.
    await _back(world, operator, peers[last], 800)
    await world.status_where(
        TOPIC,
        "t",
        lambda status: (
            condition_of(status, "Ready").get("reason") == "ElectionPending"
            # The message names the broker whose log is needed.
            and f"start broker {other}" in condition_of(status, "Ready")["message"]
        ),
    )
    # The eligible broker returns with the complete log.
    winner = await _back(world, operator, peers[other], 1000)
    await world.until(lambda: winner.rows[T].leader == other, "the longest log leads")
    made = await _row(world)
    # The truncated replica is in the last known ELR until it has caught up.
    assert (made.isr, made.last_known_elr, made.recovering) == ((other,), (last,), False)
    assert "offsets 800 to 999" in await world.event("RecordsLost")
    assert (await winner.alter("t", 0, tuple(sorted((other, last))))).error_code == 0
    assert (await _row(world)).last_known_elr == ()


@pytest.mark.parametrize("is_killed", [True, False], ids=["killed", "hangs"])
async def test_a_leader_that_is_killed_or_hangs_is_fenced_before_its_session_ends(
    world: ClusterWorld, is_killed: bool
) -> None:
    await world.create_cluster()
    operator = await world.start_operator(session_timeout_s=SESSION_S)
    peers = await _three(world, operator)
    first = peers[1].rows[T].leader
    watching = peers[next(node for node in peers if node != first)]
    # The session lasts ten minutes. The evidence is a closed connection, or a follower without an
    # answer.
    if is_killed:
        await peers[first].close()
    else:
        peers[first].is_paused, watching.unresponsive = True, (first,)
    await world.until(lambda: watching.rows[T].leader not in (-1, first), "another leads")
    assert first not in watching.rows[T].isr
    # The broker is welcome again, as a new process or as the same one.
    if is_killed:
        await world.start_peer(peers[first].restarted(clean=False), operator)
    else:
        peers[first].is_paused = False
        await world.until(lambda: not peers[first].fenced, "the broker is unfenced")


async def test_restarted_broker_registers_at_once_from_its_own_disk(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    operator = await world.start_operator(session_timeout_s=SESSION_S)
    one = await world.start_broker(1, operator)
    # Another directory id: a second broker with the same node id, or a replaced disk.
    stranger = BrokerPeer(1, one.cluster_id, one.certificates)
    await _refused(stranger, operator)
    # The former process is still connected.
    await _refused(one.restarted(clean=False), operator)
    await one.close()
    # A new disk must not take over silently, even when the former process has gone.
    await _refused(stranger, operator)
    # The same disk registers at once, without waiting for the session to end.
    await world.start_peer(one.restarted(clean=False), operator)


async def _refused(peer: BrokerPeer, operator: OperatorProcess) -> None:
    with pytest.raises(ControllerRefused):
        await peer.register(operator.control)
    await peer.close()


async def test_recreated_broker_object_keeps_its_partitions(world: ClusterWorld) -> None:
    """As after a restore from a backup: Broker objects without finalizers and without statuses."""
    await world.create_cluster()
    operator = await world.start_operator(session_timeout_s=SESSION_S)
    one = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.condition(TOPIC, "t", "Ready", "True")
    # Its only replica cannot move, so the removal waits.
    await world.delete(BROKER, "broker-1")
    draining = await world.condition(BROKER, "broker-1", "Draining", "True", "ReplicasInUse")
    assert (
        "1 partition (t-0) would lose the last live copy. To remove the broker, "
        in draining["message"]
    )
    assert one.rows[T].leader == 1
    # A restart of the broker does not complete the removal.
    await one.close()
    one = await world.start_peer(one.restarted(clean=False), operator)
    await world.until(lambda: one.rows[T].leader == 1, "it serves while its removal waits")

    # Deleted by force, then created again under the same name.
    nothing = {"metadata": {"finalizers": None}}
    await world.api.merge_patch(BROKER, world.namespace, "broker-1", nothing)
    await world.until(lambda: world.is_deleted(BROKER, "broker-1"), "it is deleted")
    await world.until(lambda: _offline(world), "no broker leads")
    await one.close()
    await world.create(BROKER, "broker-1", nodeId=1, workload="External")
    await one.start(operator.control)
    # The rows were never touched, so the broker leads its partition again.
    await world.until(lambda: one.rows[T].leader == 1, "it leads again")
    await world.condition(TOPIC, "t", "Ready", "True", "Serving")


async def _offline(world: ClusterWorld) -> bool:
    return (await _row(world)).leader == -1


async def test_leader_with_failed_storage_is_replaced_until_repaired(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator(session_timeout_s=SESSION_S)
    peers = await _three(world, operator)
    leader = peers[peers[1].rows[T].leader]
    topic_id = leader.topics["t"].topic_id
    # The broker itself is alive, but the disk of this partition refuses writes.
    leader.failed = (control.TopicPartitions(topic_id=topic_id, partitions=(0,)),)
    await leader.report(0, 0)
    await world.until(lambda: leader.rows[T].leader != leader.node_id, "another leads")
    successor = peers[leader.rows[T].leader]
    await world.until(lambda: successor.rows[T].leader == successor.node_id, "it knows")
    assert leader.node_id not in successor.rows[T].isr
    # 107 is INELIGIBLE_REPLICA: a failed replica must not join the ISR.
    assert (await successor.alter("t", 0, (1, 2, 3))).error_code == 107
    # After the repair it may.
    leader.failed = ()
    await leader.report(0, 0)
    assert (await successor.alter("t", 0, (1, 2, 3))).error_code == 0


async def test_refusing_storage_is_reported_also_if_no_leader_moves(
    world: ClusterWorld,
) -> None:
    """No leader can move, so no row changes; the failure is reported nevertheless."""
    await world.create_cluster()
    operator = await world.start_operator(session_timeout_s=SESSION_S)
    peer = await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.condition(TOPIC, "t", "Ready", "True")
    topic_id = (await _row(world)).topic_id
    peer.failed = (control.TopicPartitions(topic_id=topic_id, partitions=(0,)),)
    await peer.report(log_bytes=1, records=1)
    shown = await world.condition(TOPIC, "t", "Ready", "False", "StorageFailed")
    assert "Repair the log directory of broker 1" in shown["message"]
    await world.event("StorageFailed")
    peer.failed = ()
    await peer.report(log_bytes=1, records=1)
    await world.condition(TOPIC, "t", "Ready", "True")
