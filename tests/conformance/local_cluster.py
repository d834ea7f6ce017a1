"""A whole cluster for the conformance tests: real control plane, operator, three broker
processes."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.orphans import found, look
from tidemark.tier.open import open_tier
from tidemark_cli.inspection.topic_rows import TopicRows, condition, topic
from tidemark_devcluster import settings as local_settings
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.layout import Layout
from tidemark_devcluster.settings import TIDEMARK
from tidemark_devcluster.tier import storage
from tidemark_kube.client import KubeClient, KubeRequestError
from tidemark_operator.resources.names import GROUP, PLURALS, VERSION

_numbers = itertools.count(1)


class RunningCluster:
    """A running local cluster with helpers that wait on conditions."""

    def __init__(self, local: LocalCluster) -> None:
        self.local = local
        self.kube: KubeClient = local.kube()

    @property
    def bootstrap(self) -> str:
        return self.local.addresses().bootstrap

    def view(self, name: str) -> TopicRows:
        return topic(self.kube, name)

    @property
    def tier_folder(self) -> Path:
        """The remote tier's directory."""
        return self.local.layout.tier

    def log_folder(self, node_id: int, topic: str, partition: int = 0) -> Path:
        """Return the folder of a broker's replica."""
        found = self.local.layout.broker_data(node_id).glob(f"**/{topic}-{partition}")
        return next(found)

    def new_topic(self, **spec: Any) -> str:
        """Apply a Topic (three replicas, one partition unless said) and wait until it is Ready."""
        name = f"t{next(_numbers)}"
        self.kube.apply(
            "Topic",
            name,
            {
                "clusterRef": {"name": self.local.settings.cluster},
                "partitions": 1,
                "replicationFactor": 3,
                **spec,
            },
        )
        # Ready alone is too early: a follower may still be joining, and a leader may not have
        # applied its epoch when its row already names it.
        wait(
            lambda: (
                self.view(name).condition("Ready").get("status") == "True"
                and all(len(row.isr) == len(row.replicas) for row in self.view(name).rows)
            ),
            f"{name} to be Ready and in sync",
        )
        self.wait_for_leaders(name)
        return name

    def problems(self) -> str:
        """Return the last warnings in each log, and the objects that are not Ready."""
        lines = []
        for log in sorted((self.local.layout.root / "logs").glob("*.log")):
            logged = log.read_text("utf-8", "replace").splitlines()
            warnings = [line for line in logged if " WARNING " in line or " ERROR " in line]
            lines += [f"{log.stem}: {line}" for line in warnings[-10:]]
        try:
            lines += self._not_ready()
        except KubeRequestError as error:
            lines.append(str(error))
        return "\n".join(line[:400] for line in lines)

    def _not_ready(self) -> Iterator[str]:
        for kind in ("Broker", "Topic"):
            for item in self.kube.objects(kind):
                ready = condition(item, "Ready")
                if ready.get("status") != "True":
                    yield f"{kind} {item['metadata']['name']}: {ready}"

    def configure(self, config: Mapping[str, str | None]) -> None:
        """Change keys of the Cluster's configuration; None removes one."""
        place = f"namespaces/{self.kube.namespace}/{PLURALS['Cluster']}"
        self.kube.merge_patch(
            f"/apis/{GROUP}/{VERSION}/{place}/{self.local.settings.cluster}",
            {"spec": {"config": dict(config)}},
        )

    def wait_for_leaders(self, topic: str) -> None:
        """Until each leader has heard that it is one: of what a producer has in flight before that
        the first is refused, and comes again behind the others, unless its client is idempotent."""
        client = Consumer({"bootstrap.servers": self.bootstrap, "group.id": "none"})

        # Only the leader answers ListOffsets, and only after it has applied its epoch.
        def leads(place: TopicPartition) -> bool:
            try:
                client.get_watermark_offsets(place, timeout=10)
            except KafkaException:
                return False
            return True

        for row in self.view(topic).rows:
            place = TopicPartition(topic, row.partition)
            wait(lambda place=place: leads(place), f"{topic} to be led")  # type: ignore[misc]
        client.close()


def wait(holds: Callable[[], bool], what: str, timeout_s: float = 120.0) -> None:
    """Wait until ``holds`` is true; fails naming what was waited for.

    The limit is generous, because other tests may use all cores.
    """
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s for {what}"
        time.sleep(0.05)


def _wait_for_sweep(cluster: RunningCluster) -> None:
    try:
        wait(lambda: not _unnamed(cluster), "the tier to have nothing that nothing names")
    except AssertionError as error:
        raise AssertionError(f"{error}, but it has {_unnamed(cluster)}") from error


def _unnamed(cluster: RunningCluster) -> list[str]:
    """Invariant 10, whatever was killed meanwhile. A temporary file has a day before it goes."""
    left = found(look(open_tier(storage(cluster.local))))
    return [item for item in left if not item.startswith("temporary file")]


@contextmanager
def run_cluster(
    folder: Path,
    *,
    brokers: int = 3,
    tier: str = "directory",
    engine: str = TIDEMARK,
    operator_options: Sequence[str] = (),
    entries: Mapping[str, str] | None = None,
) -> Iterator[RunningCluster]:
    """Start a cluster in ``folder`` and stop it at the end.

    ``entries`` are added to the configuration of each broker.
    """
    layout = Layout(folder)
    layout.create()
    settings = local_settings.choose(layout, cluster="tidemark", tier=tier, engine=engine)
    local = LocalCluster(
        layout, settings, lambda _: None, operator_options=operator_options, entries=entries
    )
    # A cluster that failed to start has processes as well, so stop covers the start.
    try:
        local.start(brokers=brokers)
        cluster = RunningCluster(local)
        try:
            yield cluster
            # Kills leave uploads without a manifest entry. The sweep must have removed them all
            # before the stop.
            if engine == TIDEMARK:
                _wait_for_sweep(cluster)
        finally:
            cluster.kube.close()
    finally:
        local.stop()
