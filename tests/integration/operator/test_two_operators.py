"""One operator leads and others are on standby; the next leader has the racks, the figures and
the pending disablement.
"""

import pytest

from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.operator_process import OperatorProcess
from tidemark_operator.kube.kinds import BROKER, CLUSTER, TOPIC, Json

pytestmark = pytest.mark.full

RACKS = {1: "a", 2: "b"}


def figures(status: Json) -> tuple[object, ...]:
    names = ("clusterId", "storeId", "tieredTopics")
    return tuple(status.get(name) for name in names)


async def follow(world: ClusterWorld, peers: list[BrokerPeer], leader: OperatorProcess) -> None:
    """Let the brokers connect to the operator that leads now."""
    await leader.wait_ready()
    for peer in peers:
        await peer.close()
        await peer.start(leader.control)
    await world.until(lambda: not any(peer.fenced for peer in peers), "all are unfenced")


async def test_next_leaders_keep_racks_sizes_and_the_disablement(
    world: ClusterWorld,
) -> None:
    await world.create_cluster()
    first = await world.start_operator()
    for node_id, rack in RACKS.items():
        await world.create(
            BROKER, f"broker-{node_id}", nodeId=node_id, workload="External", rack=rack
        )
    peers = [await world.start_broker(node_id, first) for node_id in RACKS]
    await world.create_topic("t", tiering={"enabled": True})
    await world.until(lambda: all("t" in peer.topics for peer in peers), "placed")
    # A disablement that stays pending over both changes of the leader.
    for peer in peers:
        peer.acknowledge_disable = False
        await peer.report(1000, 5000)
    # Sizes were reported before the changes, and must not be lost.
    await world.status_where(
        TOPIC, "t", lambda found: bool((found.get("tiering") or {}).get("remoteBytes"))
    )
    await world.patch(TOPIC, "t", tiering={"enabled": False, "disablePolicy": "Retain"})
    running = await world.status_where(
        TOPIC, "t", lambda found: (found.get("tiering") or {}).get("pendingBrokers") == [1, 2]
    )
    known = figures((await world.get(CLUSTER, "demo"))["status"])

    second = world.operator()
    await second.launch()
    # First change: the leader is killed. Second change: it is stopped.
    await first.kill()
    await follow(world, peers, second)
    third = world.operator()
    await third.launch()
    assert await second.stop() == 0
    await follow(world, peers, third)

    # Racks, figures and the disablement are those of the first operator.
    for peer in peers:
        assert {node: state.rack for node, state in peer.brokers.items()} == RACKS
    assert figures((await world.get(CLUSTER, "demo"))["status"]) == known
    tiering = (await world.get(TOPIC, "t"))["status"]["tiering"]
    for name in ("state", "epoch", "policy", "since", "remoteBytes"):
        assert tiering[name] == running["tiering"][name]
    # Brokers acknowledge, and the disablement completes under its old epoch.
    for peer in peers:
        peer.acknowledge_disable = True
    done = await world.status_where(
        TOPIC, "t", lambda found: found["tiering"]["state"] == "Disabled"
    )
    assert done["tiering"]["epoch"] == tiering["epoch"]
