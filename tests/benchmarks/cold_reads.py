"""``make bench-cold``: clients that read what only the tier has, from one broker.

Our broker has a MinIO on the same machine, or a directory. Apache Kafka has its LocalTieredStorage,
which is a directory. For each number of readers the same records are read three ways: from an
untiered topic (hot), and twice from a tiered one whose local log is empty (cold). Then single
records are produced at a fixed rate, alone and beside readers. No figure is a pass or a failure.
"""

import argparse
import os
import re
import resource
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Thread

from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewTopic,
    ResourceType,
)

from tests import apache_kafka as kafka
from tests.benchmarks import load_process
from tests.benchmarks.latency.requests import MODULE, OpenLoop, run
from tests.benchmarks.load import RECORD_BYTES, ClientLoad
from tests.benchmarks.processes import cpu_seconds, peak_resident_mb
from tests.benchmarks.results import SUSTAINED, Figures, Results, one_line, sides_of
from tests.benchmarks.sides import KAFKA, OURS, BenchmarkSide, start_kafka, start_tidemark
from tests.suites.packages import Missing, go_program
from tidemark.kafka_client.access import KafkaAccess
from tidemark.kafka_client.blocking_client import BlockingKafkaClient
from tidemark.kafka_client.values import EARLIEST_LOCAL, LATEST
from tidemark.metrics import tier_table
from tidemark.metrics.metric import Metric

#: Errors of one measure: its client failed, or no broker answered.
FAILURES = (subprocess.CalledProcessError, OSError)
SEGMENT_BYTES = 8 << 20
#: Default of consumers: ``max.partition.fetch.bytes``.
_FETCH_BYTES = 1 << 20
_TIERING_S, _POLL_S = 180.0, 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdSizes:
    """Size of a run. ``megabytes``: read by all readers together. ``rate``: records a second."""

    rounds: int = 3
    #: Cache on our broker's disk, 0 for none.
    disk_cache_megabytes: int = 0
    #: Our tier: ``s3`` (a MinIO) or ``directory``, as Apache Kafka's is.
    tier: str = "s3"
    #: Give brokers the first core alone. Clients and store share the others.
    pinned: bool = False
    readers: Sequence[int] = (1, 10, 60)
    megabytes: int = 480
    rate: int = 1000
    seconds: float = 20
    warm_s: float = 2


def start(name: str, folder: Path, sizes: ColdSizes) -> BenchmarkSide:
    """Start one broker of a side, with remote storage."""
    if name == KAFKA:
        return start_kafka(folder, 1, tiered=True)
    disk_bytes = sizes.disk_cache_megabytes << 20
    entries = {
        "tidemark.remote.chunk.cache.disk.bytes": str(disk_bytes),
        "tidemark.remote.chunk.cache.disk.path": str(folder / "chunks"),
    }
    return start_tidemark(
        folder, 1, tiered=True, tier=sizes.tier, entries=entries if disk_bytes else {}
    )


def _pin(side: BenchmarkSide) -> None:
    """Move brokers to the first core, and store and later clients to the others."""
    first, *others = sorted(os.sched_getaffinity(0))
    # Threads and processes that these start later stay on the same cores.
    os.sched_setaffinity(0, others)
    for cores, pids in (([first], side.pids()), (others, side.store_pids())):
        for pid in pids:
            for thread in Path(f"/proc/{pid}/task").iterdir():
                os.sched_setaffinity(int(thread.name), cores)


@dataclass(frozen=True, slots=True)
class ColdMeasure:
    """``take``: figures by the name of a measure."""

    name: str
    take: Callable[[BenchmarkSide, ColdSizes], Mapping[str, Figures]]


def filled(
    side: BenchmarkSide, readers: int, sizes: ColdSizes, *, tiered: bool, replicas: int = 1
) -> ClientLoad:
    """Create a topic with a partition for each reader, fill it, and return the load that reads it.

    If it is ``tiered``, everything that the load reads is in the tier only.
    """
    admin = AdminClient({"bootstrap.servers": side.bootstrap, "log_level": 1})
    kind = "cold" if tiered else "hot"
    name = f"{kind}-{readers}-{time.monotonic_ns()}"
    config = {"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"}
    if tiered:
        config |= {"remote.storage.enable": "true", "local.retention.bytes": "1"}
    # Both sides create topics for clients, with Kafka's names of the configuration.
    topic = NewTopic(name, readers, replicas, config=config)
    admin.create_topics([topic])[name].result(60)
    load = ClientLoad(
        kind="produce",
        bootstrap=side.bootstrap,
        topic=name,
        records=sizes.megabytes * (1 << 20) // RECORD_BYTES,
        partitions=readers,
        members=readers,
        fetch_bytes=_FETCH_BYTES,
    )
    # Readers read what one producer has written to all partitions in turn.
    load_process.run(load)
    ends = _offsets(load, LATEST)
    if tiered:
        _close_segments(admin, load)
        # Records that closed the segments are in segments of one record. These would cost more
        # requests than the others, and hot readers have none.
        local = _offsets(load, EARLIEST_LOCAL)
        ends = [min(end, begin) for end, begin in zip(ends, local, strict=True)]
    return replace(load, kind="readers", until=ends)


def _close_segments(admin: AdminClient, load: ClientLoad) -> None:
    """Roll each partition, so that only one record of it stays in the local log."""
    changed = ConfigEntry("segment.ms", "200", incremental_operation=AlterConfigOpType.SET)
    topic = ConfigResource(ResourceType.TOPIC, load.topic, incremental_configs=[changed])
    admin.incremental_alter_configs([topic])[topic].result(60)
    # The change reaches the broker a moment later, so records are produced until all have rolled.
    deadline = time.monotonic() + _TIERING_S
    while time.monotonic() < deadline:
        load_process.run(replace(load, records=load.partitions))
        time.sleep(2 * _POLL_S)
        ends, local = _offsets(load, LATEST), _offsets(load, EARLIEST_LOCAL)
        # Segments of the last seconds may still be on their way to the tier.
        if all(0 < end - begin <= _ROLLED_MAX for end, begin in zip(ends, local, strict=True)):
            return
    raise TimeoutError(f"{load.topic} was not tiered in {_TIERING_S:.0f} s")


#: Records at the end of a partition that are not in the tier yet.
_ROLLED_MAX = 10


def _offsets(load: ClientLoad, timestamp: int) -> list[int]:
    with BlockingKafkaClient(KafkaAccess(tuple(load.bootstrap.split(",")))) as brokers:
        found = brokers.list_offsets(load.topic, dict.fromkeys(range(load.partitions), timestamp))
    return [found[number] for number in range(load.partitions)]


def take_reads(side: BenchmarkSide, sizes: ColdSizes, readers: int) -> Mapping[str, Figures]:
    """Read hot, then cold, then cold again."""
    name = f"{readers} reader{'s' if readers > 1 else ''}"
    found = {}
    hot = filled(side, readers, sizes, tiered=False)
    found[f"{name}, hot"] = _read(side, hot)
    side.delete(hot.topic)
    cold = filled(side, readers, sizes, tiered=True)
    found[f"{name}, cold"] = _read(side, cold)
    found[f"{name}, cold again"] = _read(side, cold)
    side.delete(cold.topic)
    return found


def _read(side: BenchmarkSide, load: ClientLoad) -> Figures:
    """Run the readers once; return rate, CPU time, and the requests to the store."""
    before, cpu_s = _counters(side), _cpu_s(side.pids())
    store_cpu_s = _cpu_s(side.store_pids())
    answer = load_process.run(load)
    megabytes = answer["records"] * RECORD_BYTES / 1e6
    figures = {
        "MB/s": megabytes / (answer["ended"] - answer["began"]),
        "broker CPU-s/GB": (_cpu_s(side.pids()) - cpu_s) / megabytes * 1e3,
        "peak memory MB": sum(map(peak_resident_mb, side.pids())),
    }
    if not side.metrics():
        return figures
    after = _counters(side)
    grown = {row: after[row] - before[row] for row in _COUNTERS}
    return figures | {
        "store CPU-s/GB": (_cpu_s(side.store_pids()) - store_cpu_s) / megabytes * 1e3,
        "GETs": grown[tier_table.STORE_READS],
        # 1 means that each byte was read from the store once.
        "GET bytes/byte": grown[tier_table.STORE_READ_BYTES] / 1e6 / megabytes,
        "ahead bytes/byte": grown[tier_table.READ_AHEAD_BYTES] / 1e6 / megabytes,
        "unused MB": grown[tier_table.READ_AHEAD_UNUSED_BYTES] / 1e6,
    }


_COUNTERS = (
    tier_table.STORE_READS,
    tier_table.STORE_READ_BYTES,
    tier_table.READ_AHEAD_BYTES,
    tier_table.READ_AHEAD_UNUSED_BYTES,
)


def _counters(side: BenchmarkSide) -> Mapping[Metric, float]:
    """Return the sums over all brokers."""
    found = dict.fromkeys(_COUNTERS, 0.0)
    for address in side.metrics():
        with urllib.request.urlopen(f"http://{address}/metrics") as answer:
            page = answer.read().decode()
        for row in _COUNTERS:
            sample = re.search(rf"^{row.name} (\S+)$", page, re.MULTILINE)
            found[row] += float(sample[1]) if sample else 0.0
    return found


def _cpu_s(pids: Sequence[int]) -> float:
    return sum(map(cpu_seconds, pids))


def take_latency(side: BenchmarkSide, sizes: ColdSizes) -> Mapping[str, Figures]:
    """Produce single records at a fixed rate: alone, beside hot readers, and beside cold ones."""
    readers = sorted(sizes.readers)[len(sizes.readers) // 2]
    loop = OpenLoop(
        rate=sizes.rate, seconds=sizes.seconds, warm_s=sizes.warm_s, partitions=1, linger_ms=0
    )
    topic = side.topic()
    # Warm, as both sides are after the first requests.
    run(replace(loop, seconds=sizes.warm_s, warm_s=0), side.bootstrap, topic)
    found = {"produce alone": _latencies(side, loop, topic)}
    # Hot readers take as many cores as they get, too: the difference is what the tier costs.
    for kind, tiered in (("hot", False), ("cold", True)):
        load = filled(side, readers, sizes, tiered=tiered)
        found[f"produce beside {readers} {kind} readers"] = _beside(side, loop, topic, load)
        side.delete(load.topic)
    side.delete(topic)
    return found


def _beside(side: BenchmarkSide, loop: OpenLoop, topic: str, readers: ClientLoad) -> Figures:
    """Produce while these readers read; return the latencies, and the rate of the readers."""
    # They read for as long as records are produced, and a little longer.
    load = replace(readers, seconds=loop.warm_s + loop.seconds + 1)
    answers: list[Mapping[str, float]] = []
    thread = Thread(target=lambda: answers.append(load_process.run(load)))
    thread.start()
    time.sleep(1)
    figures = _latencies(side, loop, topic)
    thread.join()
    if not answers:
        raise OSError("the readers failed")
    took_s = answers[0]["ended"] - answers[0]["began"]
    return {**figures, "readers MB/s": answers[0]["records"] * RECORD_BYTES / 1e6 / took_s}


def _latencies(side: BenchmarkSide, loop: OpenLoop, topic: str) -> Figures:
    requests, _ = run(loop, side.bootstrap, topic)
    return {**requests.figures(), SUSTAINED: float(requests.is_sustained(loop.rate))}


def measures(sizes: ColdSizes) -> Sequence[ColdMeasure]:
    """Return all measures, in their order."""
    reads = [
        ColdMeasure(
            f"readers {count}", lambda side, sizes, count=count: take_reads(side, sizes, count)
        )
        for count in sizes.readers
    ]
    return (*reads, ColdMeasure("produce", take_latency))


def one_round(
    number: int, side_name: str, chosen: Sequence[ColdMeasure], sizes: ColdSizes, results: Results
) -> None:
    """Take the measures of one side once, on a cluster of its own."""
    with tempfile.TemporaryDirectory(prefix="tidemark-cold-") as folder:
        cores = os.sched_getaffinity(0)
        side = start(side_name, Path(folder), sizes)
        try:
            if sizes.pinned:
                _pin(side)
            # A JVM compiles hot code first.
            warm = filled(side, 1, replace(sizes, megabytes=sizes.megabytes // 2), tiered=False)
            load_process.run(warm)
            side.delete(warm.topic)
            for measure in chosen:
                load = os.getloadavg()[0]
                try:
                    found = measure.take(side, sizes)
                # A failed measure is reported, and the others are taken.
                except FAILURES as error:
                    results.failures.append(f"{measure.name}, {side_name}: {error}")
                    print(f"round {number}  {side_name:12}  {measure.name}: failed: {error}")
                    continue
                for name, figures in found.items():
                    results.add(name, side_name, number, figures)
                    print(
                        f"round {number}  {side_name:12}  {name}: {one_line(figures)}  "
                        f"(load before {load:.1f})",
                        flush=True,
                    )
        finally:
            os.sched_setaffinity(0, cores)
            side.stop()


def main(arguments: Sequence[str] | None = None) -> None:
    """Alternate the sides and print the table."""
    parser = argparse.ArgumentParser(prog="make bench-cold", description=__doc__)
    parser.add_argument("--only", default="", help="a regular expression that measures' names have")
    parser.add_argument("--side", choices=("both", "tidemark"), default="both")
    parser.add_argument("--rounds", type=int, default=ColdSizes().rounds)
    parser.add_argument("--megabytes", type=int, default=ColdSizes().megabytes)
    parser.add_argument("--disk-cache", type=int, default=0, help="MB of our broker's disk cache")
    parser.add_argument("--tier", choices=("s3", "directory"), default="s3", help="of our broker")
    parser.add_argument("--pinned", action="store_true", help="give the broker a core of its own")
    asked = parser.parse_args(arguments)
    sizes = ColdSizes(
        rounds=asked.rounds,
        megabytes=asked.megabytes,
        disk_cache_megabytes=asked.disk_cache,
        tier=asked.tier,
        pinned=asked.pinned,
    )
    chosen = [measure for measure in measures(sizes) if re.search(asked.only, measure.name)]
    if not chosen:
        parser.error(f"no measure has {asked.only!r}")
    if sizes.pinned and len(os.sched_getaffinity(0)) < 2:
        parser.error("--pinned needs two cores")
    sides = (OURS,) if asked.side == "tidemark" else (OURS, KAFKA)
    # Programs are built and jars are loaded before the first round.
    try:
        if KAFKA in sides:
            kafka.jars()
        go_program(MODULE)
    except (kafka.MavenMissing, Missing) as error:
        raise SystemExit(str(error)) from error
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    setting = {
        key: value for key, value in asdict(sizes).items() if key not in ("readers", "rounds")
    }
    results = Results(benchmark="cold", rounds=sizes.rounds, setting=setting)
    print(f"{sizes.rounds} rounds, {sizes.megabytes} MB; results in {results.path()}", flush=True)
    for number in range(1, sizes.rounds + 1):
        for name in sides_of(number):
            if name in sides:
                one_round(number, name, chosen, sizes, results)
                results.write()
    print()
    for line in results.lines():
        print(line)
    if results.failures:
        raise SystemExit("\n".join(("failed:", *results.failures)))


if __name__ == "__main__":
    main()
