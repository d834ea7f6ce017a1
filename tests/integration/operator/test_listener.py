"""The operator's listeners under bad input, and its metrics, health page and Events."""

import asyncio
import contextlib

import pytest

from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.kube.kinds import CLUSTER, EVENT

# A length that is too large, another protocol, and a frame without a valid header.
GARBAGE = (b"\x7f\xff\xff\xff", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x0a" + b"\xff" * 10)


async def test_garbage_closes_its_connection_and_nothing_else(world: ClusterWorld) -> None:
    """No answer to an unauthenticated client, and one log line however many there are."""
    await world.create_cluster()
    operator = await world.start_operator()
    peer = await world.start_broker(1, operator)
    host, _, port = operator.control.rpartition(":")
    for data in GARBAGE:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(data)
        async with asyncio.timeout(10):
            # A reset is as good as a regular close.
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()
    await world.until(lambda: "control listener: closed a connection" in operator.log, "it is said")
    # Fewer lines than connections: the log is rate-limited.
    assert operator.log.count("control listener: closed a connection") < len(GARBAGE)
    await world.create_topic("t", replicas=1)
    await world.until(lambda: ("t", 0) in peer.rows, "the broker is served on")


async def test_without_a_cluster_no_broker_is_accepted(world: ClusterWorld) -> None:
    """Before the first Cluster there is no certificate authority to authenticate brokers with."""
    operator = await world.start_operator()
    host, _, port = operator.control.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    async with asyncio.timeout(10):
        # Closed before the TLS handshake.
        assert await reader.read() == b""
    writer.close()
    await world.until(lambda: "no peer can be authenticated" in operator.log, "it says why")
    # The same operator accepts brokers once a Cluster exists.
    await world.create_cluster()
    await world.condition(CLUSTER, "demo", "Ready", "False", "NoBrokers")
    await world.start_broker(1, operator)


async def test_metrics_health_and_events_show_the_state(world: ClusterWorld) -> None:
    await world.create_cluster(**{"enable.under.replicated.topic.creation": "true"})
    operator = await world.start_operator()
    await world.start_broker(1, operator)
    await world.create_topic("t", partitions=2, replicas=2)

    async def placeholders() -> bool:
        return await operator.metric("tidemark_placeholders") == 2

    # Two partitions, each with one replica that has no broker.
    await world.until(placeholders, "two placeholders are measured")
    assert await operator.metric("tidemark_operator_leader") == 1
    assert await operator.metric("tidemark_controller_epoch") >= 1
    assert await operator.metric("tidemark_operator_slice_writes_total") >= 1
    status, body = await operator.get("/healthz")
    assert (status, body.split(":")[0]) == (200, "ok")
    # Unknown pages are no part of the health page.
    assert (await operator.get("/nothing"))[0] == 404

    async def reasons_recorded() -> bool:
        found = await world.api.list_all(EVENT, world.namespace)
        return {"BrokerRegistered", "BrokerReady", "PartitionsPlaced"} <= {
            str(event["reason"]) for event in found
        }

    await world.until(reasons_recorded, "Events are written")


async def test_requests_of_a_former_connection_have_no_effect(
    world: ClusterWorld,
) -> None:
    """Sent over a broken connection, then refused over another: the first copy must have no effect.
    Otherwise the ISR would have a member that its leader does not wait for (invariant 1)."""
    await world.create_cluster()
    operator = await world.start_operator()
    peers = {node: await world.start_broker(node, operator) for node in (1, 2)}
    await world.create_topic("t", replicas=2)
    await world.until(lambda: all(("t", 0) in peer.rows for peer in peers.values()), "it is there")
    leader = peers[peers[1].rows["t", 0].leader]
    # The leader has shrunk the ISR, so a late proposal could grow it again.
    await leader.alter("t", 0, (leader.node_id,))
    await world.until(lambda: leader.rows["t", 0].isr == (leader.node_id,), "the ISR has shrunk")

    # Registering again on a new connection keeps the broker's epoch.
    former, epoch = leader.requests, leader.broker_epoch
    assert (await leader.register(operator.control)).broker_epoch == epoch
    present, leader.requests = leader.requests, former
    # The former connection is closed: neither proposals nor reports are read from it.
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await leader.alter("t", 0, (1, 2))
    with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
        await leader.report(1, 1)
    leader.requests = present
    await leader.report(1, 1)
    # The ISR is unchanged, and may now grow by a request of the present connection.
    assert (await leader.alter("t", 0, (leader.node_id,))).isr == (leader.node_id,)
    assert set((await leader.alter("t", 0, (1, 2))).isr) == {1, 2}
