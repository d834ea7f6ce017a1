"""``python -m tests.benchmarks.topics [--topics N]``: many Topics applied at once, then deleted.

A local cluster with two brokers (every part the real one), one manifest with a Topic of one
partition and two replicas per document, and the time until all are Ready; then the time until all
are deleted. Printed for both: seconds, CPU of operator, brokers and API server, writes by the API
server's own count. No figure is a pass or a failure.

``--by kubectl`` (the default) is what a user does: kubectl keeps itself to 50 requests a second,
two for each object. ``--by client`` sends everything over 16 connections as fast as the API server
takes it, so that the operator is what is measured.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tests.benchmarks.processes import cpu_seconds, peak_resident_mb
from tidemark_kube.client import KubeClient

PREFIX = "bench-"
POLL_S = 0.5
TIMEOUT_S = 900.0
CONNECTIONS = 16
WRITES = {"POST", "PUT", "PATCH", "DELETE", "APPLY"}
KINDS = ("topics", "partitionslices", "brokers", "clusters", "events", "leases", "exports")
_REQUESTS = re.compile(r"^apiserver_request_total\{(?P<labels>[^}]*)\} (?P<count>\S+)$")


class Seconds(NamedTuple):
    """From the start of the command: it returned, all objects were seen, all were as wanted."""

    command: float
    seen: float
    settled: float


@dataclass(frozen=True, slots=True)
class TopicCost:
    """CPU-seconds by process, and writes by (kind, verb)."""

    cpu: dict[str, float]
    writes: Counter[str]

    def since(self, earlier: "TopicCost") -> "TopicCost":
        """Return the cost since ``earlier``."""
        cpu = {name: value - earlier.cpu[name] for name, value in self.cpu.items()}
        return TopicCost(cpu, self.writes - earlier.writes)


class TopicBench:
    """A running local cluster and the ways to ask it."""

    def __init__(self, folder: Path, topics: int) -> None:
        self.topics = topics
        self._folder = folder
        command = ["up", "--brokers", "2", "--detach", "--output", "json", "--dir", str(folder)]
        up = json.loads(_tidemark(*command).splitlines()[-1])
        self.pids: dict[str, int] = up["processes"]
        self.bootstrap = str(up["bootstrap"])
        self.kubeconfig = str(up["kubeconfig"])
        self.kube = KubeClient(Path(self.kubeconfig), "default")
        self.cluster = str(self.kube.objects("Cluster")[0]["metadata"]["name"])

    def close(self) -> None:
        """Stop all that runs there."""
        self.kube.close()
        _tidemark("down", "--dir", str(self._folder))

    def cost(self) -> TopicCost:
        """Return the total cost so far."""
        cpu = {name: cpu_seconds(pid) for name, pid in self.pids.items()}
        return TopicCost(cpu, count_writes(self.kubectl("get", "--raw", "/metrics")))

    def kubectl(self, *arguments: str) -> str:
        """kubectl's output; raises when it fails."""
        command = ["kubectl", "--kubeconfig", self.kubeconfig, "-n", "default", *arguments]
        return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

    def timed(self, work: "Work", seen: "Look", settled: "Look") -> Seconds:
        """Do something to the Topics beside looking at them; the seconds of each."""
        began = time.monotonic()
        found: dict[str, float] = {}
        with ThreadPoolExecutor(1) as thread:
            # The work blocks, so it runs beside the polls.
            doing = thread.submit(work, self)
            # Three points in time: the command returned, all exist, all are settled.
            while len(found) < 3:
                topics = self.kube.objects("Topic")
                after = time.monotonic() - began
                if doing.done():
                    doing.result()
                    found.setdefault("command", after)
                if seen(topics):
                    found.setdefault("seen", after)
                if settled(topics):
                    found.setdefault("settled", after)
                if after > TIMEOUT_S:
                    raise SystemExit(f"not done after {TIMEOUT_S:.0f} s: {found}")
                time.sleep(POLL_S)
        return Seconds(found["command"], found["seen"], found["settled"])


Object = dict[str, Any]
Look = Callable[[list[Object]], bool]
Work = Callable[[TopicBench], object]


@dataclass(frozen=True, slots=True)
class ByKubectl:
    """One command on the whole manifest."""

    path: Path

    def apply(self, bench: TopicBench) -> None:
        bench.kubectl("apply", "--server-side", "-f", str(self.path))

    def delete(self, bench: TopicBench) -> None:
        """Ask for all to be deleted."""
        bench.kubectl("delete", "--wait=false", "-f", str(self.path))


class ByClient:
    """The same requests over many connections."""

    def apply(self, bench: TopicBench) -> None:
        spec = {"clusterRef": {"name": bench.cluster}, "partitions": 1, "replicationFactor": 2}
        self._each(bench, lambda kube, name: kube.apply("Topic", name, spec))

    def delete(self, bench: TopicBench) -> None:
        """Ask for all to be deleted."""
        self._each(bench, lambda kube, name: kube.delete("Topic", name))

    def _each(self, bench: TopicBench, call: Callable[[KubeClient, str], object]) -> None:
        with ThreadPoolExecutor(CONNECTIONS) as threads:
            list(threads.map(lambda first: self._some(bench, call, first), range(CONNECTIONS)))

    def _some(
        self, bench: TopicBench, call: Callable[[KubeClient, str], object], first: int
    ) -> None:
        kube = KubeClient(Path(bench.kubeconfig), bench.kube.namespace)
        for number in range(first, bench.topics, CONNECTIONS):
            call(kube, f"{PREFIX}{number}")
        kube.close()


def count_writes(page: str) -> Counter[str]:
    """``kind verb`` → successful and failed writes, from the API server's metrics."""
    found: Counter[str] = Counter()
    for match in filter(None, map(_REQUESTS.match, page.splitlines())):
        labels = dict(re.findall(r'(\w+)="([^"]*)"', match["labels"]))
        if labels.get("verb") in WRITES and labels.get("resource") in KINDS:
            kind = "/".join(filter(None, (labels["resource"], labels.get("subresource"))))
            found[f"{kind} {labels['verb']}"] += round(float(match["count"]))
    return found


def manifest(topics: int, cluster: str) -> str:
    """One document for each Topic."""
    return "".join(
        "---\napiVersion: tidemark.dev/v1alpha1\nkind: Topic\n"
        f"metadata: {{name: {PREFIX}{number}}}\n"
        f"spec: {{clusterRef: {{name: {cluster}}}, partitions: 1, replicationFactor: 2}}\n"
        for number in range(topics)
    )


def is_ready(topic: Object) -> bool:
    """Its condition Ready is True."""
    conditions = (topic.get("status") or {}).get("conditions") or []
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def main() -> None:
    options = _options()
    folder = Path(options.dir) if options.dir else Path(tempfile.mkdtemp(prefix="tidemark-topics-"))
    bench = TopicBench(folder, options.topics)
    try:
        measure(bench, ByClient() if options.by == "client" else _by_kubectl(bench, folder))
    finally:
        bench.close()
        if not options.dir:
            shutil.rmtree(folder, ignore_errors=True)


def _by_kubectl(bench: TopicBench, folder: Path) -> ByKubectl:
    path = folder / "topics.yaml"
    path.write_text(manifest(bench.topics, bench.cluster), encoding="utf-8")
    return ByKubectl(path)


def measure(bench: TopicBench, by: ByKubectl | ByClient) -> None:
    """Apply all, delete all."""
    total = bench.topics
    print(f"{total:,} Topics of one partition and two replicas, two brokers", flush=True)
    before = bench.cost()
    made = bench.timed(
        by.apply,
        lambda found: len(found) == total,
        lambda found: sum(map(is_ready, found)) == total,
    )
    print(f"apply   command {made.command:5.1f} s  all exist {made.seen:5.1f} s  ", end="")
    print(f"all Ready {made.settled:5.1f} s")
    ready = bench.cost()
    _print(bench, ready.since(before))
    # Deletion is requested when all have a deletion timestamp, and done when none is left.
    gone = bench.timed(
        by.delete,
        lambda found: all("deletionTimestamp" in item["metadata"] for item in found),
        lambda found: not found,
    )
    print(f"delete  command {gone.command:5.1f} s  all gone {gone.settled:5.1f} s")
    _print(bench, bench.cost().since(ready))


def _print(bench: TopicBench, cost: TopicCost) -> None:
    for name, seconds in cost.cpu.items():
        peak = peak_resident_mb(bench.pids[name])
        print(f"        {name:14} {seconds:6.1f} CPU-s   {peak:6.0f} MB at most")
    writes = ", ".join(f"{kind} {number}" for kind, number in sorted(cost.writes.items()))
    print(f"        writes: {writes}", flush=True)


def _tidemark(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("tidemark")), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--topics", type=int, default=1000)
    parser.add_argument("--by", choices=("kubectl", "client"), default="kubectl")
    parser.add_argument("--dir", default="", help="keep the cluster's folder here")
    return parser.parse_args()


if __name__ == "__main__":
    main()
