"""Ten incidents on a real local cluster, with one support bundle of each.

Each incident is caused, named by the first line of ``tidemark status``, reported by ``tidemark
report``, and healed again::

    python -m tests.incident_reports FOLDER [--only NAME]

FOLDER gets ``reports/NUMBER.tar.gz``, for readers who are to find the cause with nothing else, and
``key.md`` with what was done. The run fails if a first line does not name the cause.
"""

import argparse
import contextlib
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from tests.conformance.local_cluster import RunningCluster, run_cluster
from tidemark_devcluster import processes

VERDICT_S = 120.0
#: Logs and Events follow a status by a moment.
SETTLE_S = 3.0
#: Segments are closed after a second, so there is always one to copy to the tier.
_SMALL = {"segment.bytes": "1048576", "segment.ms": "1000"}
_RECORD = b"x" * 200_000


@dataclass(frozen=True, slots=True)
class Incident:
    """Way to break a cluster.

    ``cause`` breaks it, and heals it at the end of the context. ``verdict`` is a pattern of the
    status's first line. ``truth`` is what a reader should find.
    """

    name: str
    cause: Callable[[RunningCluster], contextlib.AbstractContextManager[None]]
    verdict: str
    truth: str


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.incident_reports", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", help="name of one incident")
    parser.add_argument("--seed", type=int, default=1, help="order of the incidents (default: 1)")
    options = parser.parse_args(arguments)
    incidents = [item for item in INCIDENTS if options.only in (None, item.name)]
    if not incidents:
        sys.exit(f"--only {options.only}: use one of {', '.join(item.name for item in INCIDENTS)}")
    # Shuffled, so that the numbers say nothing to a reader.
    random.Random(options.seed).shuffle(incidents)
    (options.folder / "reports").mkdir(parents=True)
    named, key = 0, []
    with run_cluster(options.folder / "cluster") as cluster:
        _apply(cluster, "orders", config=_SMALL, tiering={"enabled": True})
        _apply(cluster, "clicks", config=_SMALL)
        for number, incident in enumerate(incidents, 1):
            # The former incident must be over before the next one.
            _verdict(cluster, "^HEALTHY")
            started_s = time.monotonic()
            with incident.cause(cluster):
                line = _verdict(cluster, incident.verdict)
                time.sleep(SETTLE_S)
                report = options.folder / "reports" / f"{number}.tar.gz"
                _tidemark(cluster, "report", "--output", str(report))
            # The last line that was seen counts if none names the cause in time.
            fits = bool(re.search(incident.verdict, line))
            named += fits
            key.append(f"{number}. **{incident.name}**: {incident.truth}\n\n   `{line}`\n")
            seconds = time.monotonic() - started_s
            missed = "" if fits else ", NOT NAMED"
            print(f"{number:2} {incident.name}, {seconds:.0f} s{missed}: {line}", flush=True)
    (options.folder / "key.md").write_text("\n".join(key), encoding="utf-8")
    print(f"incidents {len(incidents)}, named by the first line of the status {named}")
    return 0 if named == len(incidents) else 1


# ---------------------------------------------------------------- incidents


@contextlib.contextmanager
def _killed_broker(cluster: RunningCluster) -> Iterator[None]:
    cluster.local.kill_broker(2)
    yield
    cluster.local.start_broker(2)


@contextlib.contextmanager
def _paused_broker(cluster: RunningCluster) -> Iterator[None]:
    record = processes.find(cluster.local.layout, "broker-3")
    assert record is not None
    record.signal(signal.SIGSTOP)
    yield
    record.signal(signal.SIGCONT)


@contextlib.contextmanager
def _killed_operator(cluster: RunningCluster) -> Iterator[None]:
    record = processes.find(cluster.local.layout, "operator")
    assert record is not None
    processes.kill(cluster.local.layout, record)
    yield
    cluster.local.start_operator()


@contextlib.contextmanager
def _removed_tier(cluster: RunningCluster) -> Iterator[None]:
    elsewhere = cluster.tier_folder.with_name("elsewhere")
    cluster.tier_folder.rename(elsewhere)
    # A file in the folder's place: the store cannot create it again.
    cluster.tier_folder.write_text("")
    _produce(cluster, "orders")
    yield
    cluster.tier_folder.unlink()
    elsewhere.rename(cluster.tier_folder)


@contextlib.contextmanager
def _failing_disk(cluster: RunningCluster) -> Iterator[None]:
    log = cluster.log_folder(1, "clicks")
    elsewhere = log.parent.with_name("elsewhere")
    # The open segment stays writable. The next one cannot be created.
    log.parent.rename(elsewhere)
    log.parent.write_text("")
    for _ in range(3):
        _produce(cluster, "clicks")
        time.sleep(1.5)
    yield
    cluster.local.kill_broker(1)
    log.parent.unlink()
    elsewhere.rename(log.parent)
    cluster.local.start_broker(1)


@contextlib.contextmanager
def _too_many_replicas(cluster: RunningCluster) -> Iterator[None]:
    with _topic(cluster, "audit-log", replicationFactor=5):
        yield


@contextlib.contextmanager
def _two_objects_for_one_topic(cluster: RunningCluster) -> Iterator[None]:
    with _topic(cluster, "orders-copy", topicName="orders"):
        yield


@contextlib.contextmanager
def _user_without_its_secret(cluster: RunningCluster) -> Iterator[None]:
    source = {"valueFrom": {"secretKeyRef": {"name": "billing-password", "key": "password"}}}
    authentication = {"type": "scram-sha-512", "password": source}
    cluster.kube.apply(
        "User",
        "billing",
        {"clusterRef": {"name": "tidemark"}, "authentication": authentication},
    )
    yield
    cluster.kube.delete("User", "billing")


@contextlib.contextmanager
def _deletion_beyond_the_end(cluster: RunningCluster) -> Iterator[None]:
    point = {"partition": 0, "beforeOffset": 1_000_000}
    cluster.kube.apply(
        "RecordDeletion", "purge", {"topicRef": {"name": "clicks"}, "partitions": [point]}
    )
    yield
    cluster.kube.delete("RecordDeletion", "purge")


@contextlib.contextmanager
def _disablement_without_a_broker(cluster: RunningCluster) -> Iterator[None]:
    with _topic(cluster, "payments", config=_SMALL, tiering={"enabled": True}):
        _verdict(cluster, "^HEALTHY")
        _produce(cluster, "payments")
        cluster.local.kill_broker(1)
        _apply(
            cluster,
            "payments",
            config=_SMALL,
            tiering={"enabled": False, "disablePolicy": "Delete"},
        )
        yield
        cluster.local.start_broker(1)
        _verdict(cluster, "^HEALTHY")


INCIDENTS = [
    Incident(
        "killed broker",
        _killed_broker,
        r"broker-2|broker/2|Broker 2",
        "The process of broker 2 was killed.",
    ),
    Incident(
        "paused broker",
        _paused_broker,
        r"broker-3|broker/3|Broker 3",
        "Broker 3's process hangs (SIGSTOP): it exists, and does not respond.",
    ),
    Incident(
        "killed operator", _killed_operator, r"operator", "The operator's process was killed."
    ),
    Incident(
        "removed tier",
        _removed_tier,
        r"remote storage|RemoteStorage|tier",
        "The folder of the remote storage was replaced by a file.",
    ),
    Incident(
        "failing disk",
        _failing_disk,
        r"broker-1|broker/1|Broker 1",
        "Broker 1 cannot create files in its log directory, which was replaced by a file.",
    ),
    Incident(
        "too many replicas",
        _too_many_replicas,
        r"audit-log",
        "Topic audit-log has replication factor 5, and there are 3 brokers.",
    ),
    Incident(
        "two objects for one topic",
        _two_objects_for_one_topic,
        r"orders-copy",
        "Topic orders-copy names the topic that belongs to the object orders.",
    ),
    Incident(
        "user without its Secret",
        _user_without_its_secret,
        r"billing",
        "User billing names the Secret billing-password, which does not exist.",
    ),
    Incident(
        "record deletion beyond the end",
        _deletion_beyond_the_end,
        r"purge",
        "RecordDeletion purge names an offset beyond the high watermark of clicks.",
    ),
    Incident(
        "disablement without a broker",
        _disablement_without_a_broker,
        r"broker-1|broker/1|Broker 1|payments",
        "Tiering of payments is switched off while broker 1 is dead; it waits for that broker.",
    ),
]


# ---------------------------------------------------------------- the cluster


def _apply(cluster: RunningCluster, name: str, **spec: Any) -> None:
    full = {"clusterRef": {"name": "tidemark"}, "partitions": 1, "replicationFactor": 3, **spec}
    cluster.kube.apply("Topic", name, full)


@contextlib.contextmanager
def _topic(cluster: RunningCluster, name: str, **spec: Any) -> Iterator[None]:
    _apply(cluster, name, **spec)
    yield
    cluster.kube.delete("Topic", name)


def _produce(cluster: RunningCluster, topic: str) -> None:
    """Produce about three segments; records that time out do not matter."""
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "message.timeout.ms": 10_000})
    for _ in range(15):
        producer.produce(topic, _RECORD)
    producer.flush(15)


def _verdict(cluster: RunningCluster, pattern: str) -> str:
    """Wait until the status's first line fits a pattern; return the last one that was seen."""
    deadline_s, line = time.monotonic() + VERDICT_S, ""
    while not re.search(pattern, line) and time.monotonic() < deadline_s:
        time.sleep(1.0)
        # The line may be wrapped: it ends at the first empty line.
        line = " ".join(_tidemark(cluster, "status").partition("\n\n")[0].split())
    return line


def _tidemark(cluster: RunningCluster, *command: str) -> str:
    """Run one of Tidemark's commands as a user does; return its output."""
    folder = ["--dir", str(cluster.local.layout.root)]
    line = [sys.executable, "-m", "tidemark_cli.main", *command, *folder]
    done = subprocess.run(line, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
