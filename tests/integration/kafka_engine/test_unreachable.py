"""Every broker of an Apache Kafka is unreachable for a minute, killed or suspended.

The status reports it within seconds, the number of connection attempts does not grow with the
number of waiting objects, and the operator recovers by itself. The tests use a cluster of their
own, whose nodes they kill.
"""

import asyncio
import os
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.apache_kafka import QUICK, KafkaOptions, running
from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tests.integration.operator.cluster_world import condition_of
from tests.integration.operator.operator_process import OperatorProcess
from tests.kafka_programs import kafka_jars
from tidemark_devcluster.kafka_nodes import KafkaNodes
from tidemark_operator.kube.kinds import CLUSTER, RECORD_DELETION, TOPIC, Json

BROKERS = 2
AWAY_S = 60.0
#: Number of objects of each kind that wait for Kafka.
WAITING = 20
#: A look every five seconds has a time-out of ten seconds.
REPORTED_S = 25.0
HEALED_S = 60.0


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[KafkaNodes]:
    """Two brokers and a controller."""
    kafka_jars()
    options = KafkaOptions(brokers=BROKERS, controllers=1, entries=QUICK)
    with running(tmp_path / "kafka", options) as started:
        yield started


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "held up"])
async def test_kafka_unreachable_for_a_minute_recovers(
    kubeconfig: Path, tmp_path: Path, nodes: KafkaNodes, how: str
) -> None:
    world = await KafkaWorld.open(kubeconfig, tmp_path)
    try:
        await world.create_kafka_cluster(nodes.bootstrap)
        operator = await world.start_operator()
        await world.create_topic("served", 1, 2)
        await world.ready("served")
        before = (await world.get(TOPIC, "served"))["metadata"]["resourceVersion"]
        elapsed_s = await _make_unreachable(world, operator, nodes, killed=how == "killed")
        print(f"{how}: said after {elapsed_s[0]:.1f} s, healed after {elapsed_s[1]:.1f} s")
        assert (await world.get(TOPIC, "served"))["metadata"]["resourceVersion"] != before
    finally:
        for node_id in nodes.broker_ids():
            _signal(nodes, node_id, signal.SIGCONT)
        await world.close()


async def _make_unreachable(
    world: KafkaWorld, operator: OperatorProcess, nodes: KafkaNodes, *, killed: bool
) -> tuple[float, float]:
    """Return the seconds until it was reported, and until everything waiting was done."""
    began_s = time.monotonic()
    # Killed brokers refuse connections; suspended ones never answer.
    for node_id in nodes.broker_ids():
        if killed:
            nodes.kill(node_id)
        else:
            _signal(nodes, node_id, signal.SIGSTOP)
    condition = await _reported(world, REPORTED_S)
    reported_s = time.monotonic() - began_s
    assert "127.0.0.1:" in condition["message"]
    served = condition_of((await world.get(TOPIC, "served"))["status"], "Ready")
    # The served topic stays Ready: no failure of it is known.
    assert served["status"] == "True", "it gets no requests, and no failure is known"
    for number in range(WAITING):
        await world.create_topic(f"waits-{number}", 1, 1)
        await world.create_deletion(f"waits-{number}", "served", all={"beforeOffset": -1})
    await world.patch(TOPIC, "served", config={"retention.ms": "3600000"})
    # Each waiting object says what it waits for.
    for name, type_, status in (("waits-0", "Ready", "False"), ("served", "Reconciling", "True")):
        condition = await world.condition(TOPIC, name, type_, status, "KafkaUnavailable")
        assert "127.0.0.1:" in condition["message"]
    await world.status_where(RECORD_DELETION, "waits-0", _names_a_broker)
    await asyncio.sleep(5)
    # The number of attempts and messages must not grow with the waiting objects.
    await _is_quiet(world, operator, max(20.0, AWAY_S - (time.monotonic() - began_s)))
    # Kafka returns, and everything completes by itself.
    back_s = time.monotonic()
    if killed:
        await asyncio.to_thread(nodes.start, nodes.broker_ids())
    else:
        for node_id in nodes.broker_ids():
            _signal(nodes, node_id, signal.SIGCONT)
    await world.status_where(CLUSTER, "demo", _is_ready, HEALED_S)
    for number in range(WAITING):
        await world.status_where(TOPIC, f"waits-{number}", _is_ready, HEALED_S)
        await world.status_where(
            RECORD_DELETION,
            f"waits-{number}",
            lambda status: condition_of(status, "Succeeded").get("status") == "True",
            HEALED_S,
        )
    await world.condition(TOPIC, "served", "Reconciling", "False")
    return reported_s, time.monotonic() - back_s


async def _reported(world: KafkaWorld, timeout_s: float) -> Json:
    def is_unavailable(status: Json) -> bool:
        ready = condition_of(status, "Ready")
        return (ready.get("status"), ready.get("reason")) == ("False", "EngineUnavailable")

    return condition_of(
        await world.status_where(CLUSTER, "demo", is_unavailable, timeout_s), "Ready"
    )


async def _is_quiet(world: KafkaWorld, operator: OperatorProcess, looked_s: float) -> None:
    """Verify that connection attempts, writes and log lines grow with brokers, not with objects."""
    before, log = await world.versions(), operator.log
    writes = await operator.metric("tidemark_operator_status_writes_total")
    await asyncio.sleep(looked_s)
    since = operator.log[len(log) :]
    dialed = len(re.findall(r"dialing 127", since))
    written = await operator.metric("tidemark_operator_status_writes_total") - writes
    loud = len(re.findall(r"(?:WARNING|ERROR)", since))
    print(f"in {looked_s:.0f} s: {dialed} dialed, {written:.0f} written, {loud} loud lines")
    assert dialed <= BROKERS * (looked_s / 4 + 2), "it knocks too often"
    assert loud <= looked_s / 5, since[-3000:]
    after = await world.versions()
    changed = [key for key in after if after[key] != before.get(key)]
    assert written <= 2 * len(after), changed


def _signal(nodes: KafkaNodes, node_id: int, number: signal.Signals) -> None:
    record = nodes.find(node_id)
    if record is not None:
        os.kill(record.pid, number)


def _names_a_broker(status: Json) -> bool:
    condition = condition_of(status, "Succeeded")
    return condition.get("status") == "Unknown" and "127.0.0.1:" in str(condition.get("message"))


def _is_ready(status: Json) -> bool:
    return condition_of(status, "Ready").get("status") == "True"
