"""An operator within the test's own process that dies at one of its calls.

It uses the real API server and the real Apache Kafka. At the chosen call everything stops, before
the call takes effect or before its answer arrives.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from tests.integration.kafka_engine.kafka_world import KafkaWorld
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.client import KafkaClient
from tidemark_operator.background import BackgroundTasks
from tidemark_operator.engines.kafka.cluster import KafkaCluster
from tidemark_operator.engines.kafka.records import ApacheKafka
from tidemark_operator.events import EventWriter
from tidemark_operator.health import Echoes
from tidemark_operator.jobs.kubernetes import KubernetesJobs
from tidemark_operator.kafka_term import (
    disablement,
    observer,
    reassignments,
    topic_alteration,
    topic_creation,
    topic_steps,
    topics,
)
from tidemark_operator.kafka_term.services import KafkaServices, ObservedCluster
from tidemark_operator.kafka_term.term import KafkaTakeover, KafkaTerm
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.kinds import CLUSTER, key_of
from tidemark_operator.metrics import Metrics
from tidemark_operator.objects.client import ObjectClient, StatusWriter
from tidemark_operator.objects.store import ObjectCache
from tidemark_operator.reconcile.queue import KeyQueue
from tidemark_operator.reconcile.workers import LastPass

#: Requests that change something in Kafka.
CHANGES = frozenset(
    {
        "CreateTopicsRequest",
        "CreatePartitionsRequest",
        "DeleteTopicsRequest",
        "DeleteRecordsRequest",
        "IncrementalAlterConfigsRequest",
        "AlterPartitionReassignmentsRequest",
    }
)


class Fate:
    """At which call the operator dies, counted from 1 (0: at none), and whether the call takes
    effect. Calls about other objects than the Cluster and ``name`` do not count. ``calls``: those
    that do and were made."""

    def __init__(self, name: str, at: int, *, takes_effect: bool) -> None:
        self._name = name
        self._at = at
        self._takes_effect = takes_effect
        self.calls: list[str] = []
        self.dead = asyncio.Event()

    async def call(self, name: str, make: Callable[[], Awaitable[Any]]) -> Any:
        own_number = 0
        # Calls about other objects (other tests' topics) do not count.
        if "/" not in name or self._name in name or "/clusters/" in name:
            self.calls.append(name)
            own_number = len(self.calls)
        # A dead process makes no more calls.
        if self.dead.is_set():
            await asyncio.Event().wait()
        if own_number != self._at or not own_number:
            return await make()
        # The call takes effect, but the process dies before it reads the answer.
        if self._takes_effect:
            await make()
        self.dead.set()
        return await asyncio.Event().wait()


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the intervals of periodic checks from seconds to fractions of a second."""
    monkeypatch.setattr(observer, "POLL_S", 0.3)
    monkeypatch.setattr(observer, "MOVING_S", 0.2)
    monkeypatch.setattr(observer, "CONFIG_TURNS", 1)
    monkeypatch.setattr(reassignments, "TICK_S", 0.1)
    monkeypatch.setattr(reassignments, "SEEN_S", 3.0)
    monkeypatch.setattr(disablement, "ASK_S", 0.2)
    for module in (topic_alteration, topic_creation, topic_steps, topics):
        monkeypatch.setattr(module, "LOOK_AGAIN_S", 0.5)
    monkeypatch.setattr(topic_steps, "RECHECK_S", 0.5)


@contextlib.asynccontextmanager
async def operator(
    world: KafkaWorld, monkeypatch: pytest.MonkeyPatch, fate: Fate
) -> AsyncIterator[None]:
    """Lead until the block ends or the operator dies at its call."""
    api = await KubeApi.open(KubernetesAccess(world.kubeconfig))
    send_to_kube, send_to_kafka = api._call, KafkaClient._send

    async def kube(method: str, path: str, **given: Any) -> Any:
        # Reads change nothing, so dying at one equals dying at the next write.
        if method == "GET":
            return await send_to_kube(method, path, **given)
        name = f"{method} {path.partition('/namespaces/')[2]}"
        return await fate.call(name, lambda: send_to_kube(method, path, **given))

    async def kafka(
        client: KafkaClient, address: Any, broker: Any, request: Any, *rest: Any
    ) -> Any:
        def make() -> Awaitable[Any]:
            return send_to_kafka(client, address, broker, request, *rest)

        name = type(request).__name__
        return await (fate.call(name, make) if name in CHANGES else make())

    monkeypatch.setattr(api, "_call", kube)
    monkeypatch.setattr(KafkaClient, "_send", kafka)
    term = asyncio.create_task(_lead(world, api))
    try:
        yield
    finally:
        term.cancel()
        await asyncio.gather(term, return_exceptions=True)
        # The next operator must not inherit the patched client.
        monkeypatch.setattr(KafkaClient, "_send", send_to_kafka)
        await api.close()


async def _lead(world: KafkaWorld, api: KubeApi) -> None:
    objects, metrics = ObjectCache(), Metrics()
    body = await api.get(CLUSTER, world.namespace, "demo")
    # The Lease is left out: the test has one operator at a time.
    state = await KafkaTakeover(
        api=api,
        namespace=world.namespace,
        identity=f"mortal-{time.monotonic_ns()}",
        leads=lambda: True,
        objects=objects,
    ).run(body)
    # No watches here: what is new is listed.
    client = ObjectClient(api, objects, metrics, Echoes(time.monotonic))
    services = KafkaServices(
        cluster_key=key_of(body),
        state=state,
        engine=ApacheKafka(KafkaCluster(KafkaAccess(()), leads=lambda: True), state),
        objects=objects,
        client=client,
        statuses=StatusWriter(client),
        queue=KeyQueue(time.monotonic),
        background=BackgroundTasks(),
        events=EventWriter(api, objects, "mortal", metrics),
        metrics=metrics,
        jobs=KubernetesJobs(api, world.namespace),
        seen=ObservedCluster(),
    )
    await KafkaTerm(services, resync_s=0.2, last_pass=LastPass()).run()
