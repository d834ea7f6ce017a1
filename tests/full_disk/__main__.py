"""``make full-disk SEEDS=20``: the disk of one broker becomes full under load and is freed again.

Three brokers run with their log directories on tmpfs mounts of 48 MB, a tiered topic with a small
local retention, and producers with acks=all. In each seed the disk of one broker is filled for some
seconds, once or several times. The broker may be killed and restarted on the full disk. Once the
disk has space, every replica must be in sync within 30 s, without a restart and under load. Then
all acknowledged records are read back, from the tier and the brokers, and compared.

Mounting needs root. Mounts and processes are removed at the end, also after Ctrl-C.
"""

import argparse
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.conformance.local_cluster import RunningCluster, run_cluster
from tests.full_disk.disks import SIZE_BYTES, Disk
from tests.full_disk.load import FullDiskLoad
from tests.lock_order import in_order, reported
from tidemark_devcluster import processes
from tidemark_devcluster.layout import Layout

BROKERS = 3
IN_SYNC_WITHIN_S = 30.0
_LOOK_S = 0.1
_READY_S = 60.0


@dataclass(frozen=True, slots=True)
class FullDiskPlan:
    """Faults of one seed."""

    seed: int
    partitions: int
    segment_bytes: int
    local_bytes: int
    node: int
    #: For how many seconds the disk is full each time, and how many bytes are left of it.
    fills: tuple[tuple[float, int], ...]
    #: During which of them the broker is killed and started again; -1: during none.
    killed_in: int

    @classmethod
    def of(cls, seed: int) -> "FullDiskPlan":
        random = Random(seed)
        segment_bytes = random.choice((1, 1, 2)) * 1024**2
        # How many bytes stay free decides which write fails first: a batch, an index, or a
        # checkpoint.
        fills = tuple(
            (random.uniform(3, 10), random.choice((0, 0, 8192, 65536, 300_000)))
            for _ in range(random.randint(1, 3))
        )
        return cls(
            seed=seed,
            partitions=random.randint(1, 3),
            segment_bytes=segment_bytes,
            local_bytes=random.choice((1, 1_000_000, 2 * segment_bytes)),
            node=random.randint(1, BROKERS),
            fills=fills,
            killed_in=random.choice((-1, -1, random.randrange(len(fills)))),
        )


@dataclass(frozen=True, slots=True)
class FullDiskOutcome:
    """Result of a seed; ``problem`` is empty if it passed."""

    in_sync_s: float
    acknowledged: int
    #: Of how many of its partitions the broker was out of the ISR while its disk was full.
    out: int
    problem: str = ""


class Seeds:
    """Runs seeds one after the other on one cluster."""

    def __init__(self, cluster: RunningCluster, disks: dict[int, Disk]) -> None:
        self._cluster = cluster
        self._disks = disks
        #: How much of each broker's log was looked at.
        self._read: dict[int, int] = {}

    def run(self, plan: FullDiskPlan) -> FullDiskOutcome:
        """Run one seed on a topic of its own, which is deleted at the end."""
        name = f"full-{plan.seed}"
        self._create(plan, name)
        load = FullDiskLoad(self._cluster.bootstrap, name, plan.partitions, plan.seed)
        load.start()
        # Fill and free the disk under load; note which partitions the broker falls out of.
        disk, out = self._disks[plan.node], set[int]()
        try:
            time.sleep(3)  # so that there is something in the tier
            for number, (seconds, left_bytes) in enumerate(plan.fills):
                disk.give_room()
                time.sleep(1 if number else 0)
                disk.fill(left_bytes)
                if number == plan.killed_in:
                    self._restart(plan.node)
                time.sleep(seconds)
                out |= {
                    row.partition
                    for row in self._cluster.view(name).rows
                    if plan.node not in row.isr
                }
        finally:
            disk.give_room()
        # The disk has space: every replica must be in sync in time.
        began_s = time.monotonic()
        problem = self._await_in_sync(name, plan, began_s + IN_SYNC_WITHIN_S)
        in_sync_s = time.monotonic() - began_s
        # Every acknowledged record must be readable.
        load.stop()
        missing, changed = load.differences()
        problems = [problem, *load.failed[:3], reported(), *self._unexpected()]
        if missing or changed:
            problems.append(f"{missing} acknowledged records are missing, {changed} are others")
        self._delete(name)
        text = "; ".join(filter(None, problems))
        return FullDiskOutcome(in_sync_s, len(load.acknowledged), len(out), text)

    def _unexpected(self) -> Iterator[str]:
        """Return unexpected exceptions of brokers, and logs that did not open."""
        # Read on from where the previous seed stopped, so a line counts for one seed.
        for node in self._disks:
            path = self._cluster.local.layout.log(f"broker-{node}")
            with path.open(errors="replace") as log:
                log.seek(self._read.get(node, 0))
                text = log.read()
                self._read[node] = log.tell()
            for sign in ("Traceback", "no deletion of them is recorded"):
                if sign in text:
                    yield f"broker {node} has logged {sign!r}, see {path}"

    def _create(self, plan: FullDiskPlan, name: str) -> None:
        spec = {
            "clusterRef": {"name": self._cluster.local.settings.cluster},
            "partitions": plan.partitions,
            "replicationFactor": BROKERS,
            "config": {
                "retention.ms": "-1",
                "segment.bytes": str(plan.segment_bytes),
                "min.insync.replicas": "2",
            },
            "tiering": {"enabled": True, "localRetention": {"size": str(plan.local_bytes)}},
        }
        self._cluster.kube.apply("Topic", name, spec)
        # Faults on a topic that is not ready would test its creation.
        problem = self._await_in_sync(name, plan, time.monotonic() + _READY_S)
        if problem:
            raise RuntimeError(f"{name} has not become ready: {problem}")
        self._cluster.wait_for_leaders(name)

    def _await_in_sync(self, name: str, plan: FullDiskPlan, deadline_s: float) -> str:
        """Wait until every replica is in sync. Return the reason if one is not in time, otherwise
        an empty text."""
        while True:
            rows = self._cluster.view(name).rows
            out = {
                row.partition: sorted(set(row.replicas) - set(row.isr))
                for row in rows
                if len(row.isr) < BROKERS
            }
            # A topic that is being created has fewer rows.
            if len(rows) == plan.partitions and not out:
                return ""
            if time.monotonic() >= deadline_s:
                conditions = {
                    kind: self._cluster.view(name).condition(kind).get("message", "")
                    for kind in ("Ready", "FullyReplicated")
                }
                return f"not in sync, by partition: {out or 'no rows'}; conditions: {conditions}"
            time.sleep(_LOOK_S)

    def _restart(self, node: int) -> None:
        local = self._cluster.local
        record = processes.find(local.layout, f"broker-{node}")
        if record is not None:
            processes.kill(local.layout, record)
        local.start_broker(node)

    def _delete(self, name: str) -> None:
        kube = self._cluster.kube
        kube.delete("Topic", name)
        deadline_s = time.monotonic() + _READY_S
        while kube.get("Topic", name) is not None:
            if time.monotonic() >= deadline_s:
                raise RuntimeError(f"{name} has not been deleted within {_READY_S:.0f} s")
            time.sleep(_LOOK_S)


@contextmanager
def _on_small_disks(folder: Path) -> Iterator[tuple[RunningCluster, dict[int, Disk]]]:
    layout = Layout(folder)
    disks = {node: Disk(layout.broker_data(node)) for node in range(1, BROKERS + 1)}
    # Mounted before the cluster starts, and unmounted after it stopped.
    with ExitStack() as stack:
        for disk in disks.values():
            disk.mount()
            stack.callback(disk.unmount)
        cluster = stack.enter_context(run_cluster(folder, brokers=BROKERS))
        yield cluster, disks


def _go(folder: Path, seeds: Sequence[int]) -> int:
    print(f"starting {BROKERS} brokers on disks of {SIZE_BYTES // 1024**2} MB", flush=True)
    bad, times, acknowledged, were_out, began_s = [], [], 0, 0, time.monotonic()
    # All seeds share the cluster, whose disks and tier keep what earlier seeds left.
    with _on_small_disks(folder) as (cluster, disks):
        all_seeds = Seeds(cluster, disks)
        for seed in seeds:
            plan = FullDiskPlan.of(seed)
            outcome = all_seeds.run(plan)
            times.append(outcome.in_sync_s)
            acknowledged += outcome.acknowledged
            were_out += outcome.out > 0
            full_s = sum(seconds for seconds, _ in plan.fills)
            killed = ", killed" if plan.killed_in >= 0 else ""
            print(
                f"seed {seed}: broker {plan.node} full {len(plan.fills)} times, {full_s:.0f} s"
                f"{killed}, out of sync in {outcome.out} of {plan.partitions} partitions; "
                f"in sync {outcome.in_sync_s:.1f} s later; "
                f"{outcome.acknowledged:,} records acknowledged"
                + (f"; FAILED: {outcome.problem}" if outcome.problem else ""),
                flush=True,
            )
            if outcome.problem:
                bad.append(seed)
    print(
        f"{len(times)} seeds, bad {bad or 'none'}, replicas out of sync in {were_out}: "
        f"in sync {statistics.median(times):.1f} s "
        f"(median) and {max(times):.1f} s (longest) after there was room, of "
        f"{IN_SYNC_WITHIN_S:.0f} s; {acknowledged:,} records acknowledged and read back; "
        f"{time.monotonic() - began_s:.0f} s"
    )
    return int(bool(bad))


def main() -> int:
    """Return 1 if a replica stayed out of sync or a record is missing."""
    parser = argparse.ArgumentParser(prog="make full-disk")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--keep", type=Path, help="a folder for the cluster, which stays")
    options = parser.parse_args()
    seeds = range(options.first, options.first + options.seeds)
    if os.geteuid() != 0:
        print("make full-disk mounts small file systems, which needs root", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that all is unmounted
    if options.keep is not None:
        options.keep.mkdir(parents=True, exist_ok=True)
        return _go(options.keep / "cluster", seeds)
    with tempfile.TemporaryDirectory(prefix="tidemark-full-disk-") as folder:
        return _go(Path(folder) / "cluster", seeds)


if __name__ == "__main__":
    sys.exit(in_order(main))
