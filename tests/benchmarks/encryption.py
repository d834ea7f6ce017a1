"""``make bench-encryption``: what TLS costs, ours and Apache Kafka's, in turn on the same machine.

One broker with clients in clear and in TLS, then three brokers whose replication is in clear (of
ours: proven by TLS, then left), and in TLS. Prints every round, then medians and ratios. No figure
is a pass or a failure.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from confluent_kafka.admin import AdminClient, NewTopic

from tests import apache_kafka as kafka
from tests.benchmarks.load import RECORD_BYTES
from tests.benchmarks.load_process import run_load
from tests.security.client_certificates import ClientAuthority, Leaf
from tidemark_cli.inspection.topic_rows import topic as topic_info
from tidemark_devcluster import settings as local_settings
from tidemark_devcluster.cluster import LocalCluster
from tidemark_devcluster.kafka_properties import protocol_map
from tidemark_devcluster.layout import Layout

RECORDS = int(os.environ.get("BENCH_RECORDS", "400000"))
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "3"))
TOPIC, WARM_UP = "bench", "warm-up"
CLIENT_PORT_TRIES_S = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSetting:
    """Setting of a measurement: number of brokers, and which connections use TLS."""

    brokers: int
    clients: bool = False
    replication: bool = False

    def __str__(self) -> str:
        if self.brokers == 1:
            return f"one broker, clients {'in TLS' if self.clients else 'in clear'}"
        return f"three brokers, replication {'in TLS' if self.replication else 'in clear'}"


SETTINGS = (
    EncryptionSetting(brokers=1),
    EncryptionSetting(brokers=1, clients=True),
    EncryptionSetting(brokers=3),
    EncryptionSetting(brokers=3, replication=True),
)


@dataclass(frozen=True, slots=True)
class EncryptionSide:
    """Running brokers: their addresses, and how to stop them."""

    bootstrap: str
    stop: Callable[[], object]


def start_kafka(setting: EncryptionSetting, folder: Path, leaf: Leaf) -> EncryptionSide:
    """Apache Kafka with two topics of one partition each, a replica on every broker."""
    wanted = kafka.KafkaOptions(
        brokers=setting.brokers, entries=_kafkas_tls(setting, folder, leaf), java=kafka.STRONG
    )
    started = kafka.start(folder / "cluster", wanted)
    how = {"bootstrap.servers": started.bootstrap, **_client_security(setting, leaf)}
    admin, deadline = AdminClient(how), time.monotonic() + 60
    # Topics need all brokers registered, as each has a replica.
    while len(admin.list_topics(timeout=30).brokers) < setting.brokers:
        if time.monotonic() > deadline:
            raise TimeoutError("not all brokers of Apache Kafka joined")
        time.sleep(CLIENT_PORT_TRIES_S)
    topics = [NewTopic(name, 1, setting.brokers) for name in (WARM_UP, TOPIC)]
    for future in admin.create_topics(topics).values():
        future.result(30)
    return EncryptionSide(started.bootstrap, started.stop_all)


def _kafkas_tls(setting: EncryptionSetting, folder: Path, leaf: Leaf) -> dict[str, str]:
    store = folder / "broker.pem"
    store.write_text(Path(leaf.key).read_text() + Path(leaf.certificate).read_text())
    return {
        "listener.security.protocol.map": protocol_map(
            clients="SSL" if setting.clients else "PLAINTEXT",
            replication="SSL" if setting.replication else "PLAINTEXT",
        ),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(store),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": leaf.trusted,
        "listener.name.replication.ssl.client.auth": "required",
    }


def _client_security(setting: EncryptionSetting, leaf: Leaf) -> dict[str, str]:
    return {"security.protocol": "SSL", "ssl.ca.location": leaf.trusted} if setting.clients else {}


def start_tidemark(setting: EncryptionSetting, folder: Path, leaf: Leaf) -> EncryptionSide:
    """A whole local cluster with the same topics, untiered as Kafka's are."""
    layout = Layout(folder / "cluster")
    layout.create()
    settings = local_settings.choose(layout, cluster="tidemark", tier="directory")
    cluster = LocalCluster(layout, settings, lambda _: None, entries=_entries(setting, leaf))
    addresses = cluster.start(brokers=setting.brokers)
    kube = cluster.kube()
    spec = {
        "clusterRef": {"name": "tidemark"},
        "partitions": 1,
        "replicationFactor": setting.brokers,
    }
    for name in (WARM_UP, TOPIC):
        kube.apply("Topic", name, spec)
        # A run that starts before the followers are in sync would measure their catching up.
        while not any(len(row.isr) == setting.brokers for row in topic_info(kube, name).rows):
            time.sleep(CLIENT_PORT_TRIES_S)
    kube.close()
    return EncryptionSide(addresses.bootstrap, cluster.stop)


def _entries(setting: EncryptionSetting, leaf: Leaf) -> Mapping[str, str]:
    entries = {"tidemark.replication.encrypted": "true" if setting.replication else "false"}
    if setting.clients:
        entries |= {
            "listener.security.protocol.map": "PLAINTEXT:SSL",
            "listener.name.plaintext.tidemark.tls.directory": str(leaf.folder),
        }
    return entries


def measure(side: EncryptionSide, setting: EncryptionSetting, leaf: Leaf) -> tuple[float, float]:
    """MB/s of one produce and of one fetch run, after the same of no account."""
    trusted = leaf.trusted if setting.clients else ""
    megabytes = RECORDS * RECORD_BYTES / 1e6
    # The warm-up's figures are dropped: it compiles the JVM's hot code and fills caches.
    seconds = [
        run_load(kind, side.bootstrap, topic, RECORDS, trusted)
        for topic in (WARM_UP, TOPIC)
        for kind in ("produce", "fetch")
    ]
    return megabytes / seconds[2], megabytes / seconds[3]


def main() -> None:
    """Alternate the two sides, setting by setting, and print the table."""
    try:
        kafka.jars()
    except kafka.MavenMissing as error:
        raise SystemExit(str(error)) from error
    print(f"{ROUNDS} rounds, {RECORDS:,} records of {RECORD_BYTES} bytes, acks=all, one partition")
    sides = {"Apache Kafka": start_kafka, "Tidemark": start_tidemark}
    # Each measurement starts brokers of its own, so that no run inherits another one's caches.
    results: dict[tuple[EncryptionSetting, str], list[tuple[float, float]]] = {}
    for number in range(1, ROUNDS + 1):
        for setting in SETTINGS:
            for name, start in sides.items():
                with tempfile.TemporaryDirectory(prefix="tidemark-bench-") as folder:
                    leaf = ClientAuthority().leaf(Path(folder) / "listener", "CN=broker")
                    side = start(setting, Path(folder), leaf)
                    try:
                        figures = measure(side, setting, leaf)
                    finally:
                        side.stop()
                results.setdefault((setting, name), []).append(figures)
                print(f"round {number}  {name:13} {setting!s:41} {_line(figures)}", flush=True)
    _summary(results)


def _summary(results: Mapping[tuple[EncryptionSetting, str], list[tuple[float, float]]]) -> None:
    """Ratios to Apache Kafka in the same setting, and to Apache Kafka in clear."""
    medians = {key: _median(rounds) for key, rounds in results.items()}
    for (setting, name), figures in medians.items():
        clear = medians[EncryptionSetting(brokers=setting.brokers), "Apache Kafka"]
        same = medians[setting, "Apache Kafka"]
        print(
            f"median   {name:13} {setting!s:41} {_line(figures)}"
            f"   produce / Kafka {figures[0] / same[0]:.2f}, / Kafka in clear "
            f"{figures[0] / clear[0]:.2f}   fetch {figures[1] / same[1]:.2f}, "
            f"{figures[1] / clear[1]:.2f}"
        )


def _median(rounds: list[tuple[float, float]]) -> tuple[float, float]:
    produce, fetch = (statistics.median(column) for column in zip(*rounds, strict=True))
    return produce, fetch


def _line(figures: tuple[float, float]) -> str:
    return f"produce {figures[0]:6.0f} MB/s   fetch {figures[1]:6.0f} MB/s"


if __name__ == "__main__":
    main()
