"""Invariant 21: in a steady state the operator writes nothing but its Lease.

Two looks at every object's resourceVersion, some seconds apart, must agree, and the operator's own
count of writes must not have moved. Figures that move on their own (bytes, leaders) may be written
once a minute for each object, and no sooner.
"""

import asyncio
import contextlib
from collections import Counter

from tests.integration.operator.broker_peer import BrokerPeer
from tests.integration.operator.cluster_world import ClusterWorld
from tidemark_operator.kube.kinds import EVENT, LEASE, TOPIC, USER

# Longer than several reconcile intervals and reports of the brokers.
LOOKED_S = 12.0
REPORT_S = 0.25


async def reports(peers: list[BrokerPeer]) -> None:
    """Report logs that grow slowly."""
    records = 0
    while True:
        records += 100
        for peer in peers:
            await peer.report(log_bytes=records * 10, records=records)
        await asyncio.sleep(REPORT_S)


async def test_steady_cluster_writes_only_the_lease(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await world.start_operator()
    peers = [await world.start_broker(node, operator) for node in (1, 2)]
    await world.create_topic("plain")
    await world.create_topic("wide", partitions=4)
    await world.create_topic("tiered", tiering={"enabled": True})
    await world.create(USER, "alice")
    await world.condition(USER, "alice", "Ready", "True")
    for name in ("plain", "wide", "tiered"):
        await world.condition(TOPIC, name, "Ready", "True")
    # Reports change figures continuously, which must not be written each time.
    reporting = asyncio.create_task(reports(peers))
    try:
        await world.until(lambda: settled(world), "nothing was written for four seconds", 60.0)
        # From here on nothing but the Lease may change.
        lease = await world.get(LEASE, "tidemark-operator")
        before, events = await world.versions(), await world.api.list_all(EVENT, world.namespace)
        writes = await operator.metric("tidemark_operator_status_writes_total")
        await asyncio.sleep(LOOKED_S)
        after = await world.versions()
        # Compare object by object, so that a failure names the kind.
        changed = Counter(key.split("/")[0] for key in after if after[key] != before.get(key))
        assert not changed, f"written: {changed}"
        assert after.keys() == before.keys()
        assert len(await world.api.list_all(EVENT, world.namespace)) == len(events)
        assert await operator.metric("tidemark_operator_status_writes_total") == writes
        # The Lease is renewed, which proves that the operator was alive.
        now = await world.get(LEASE, "tidemark-operator")
        assert now["metadata"]["resourceVersion"] != lease["metadata"]["resourceVersion"]
    finally:
        reporting.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await reporting


async def settled(world: ClusterWorld) -> bool:
    """Wait until the writes that follow the placement (figures of brokers, first reports) are
    done.
    """
    before = await world.versions()
    await asyncio.sleep(4.0)
    return await world.versions() == before
