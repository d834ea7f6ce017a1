"""``make bench-spark``: what reading a topic from its tier costs, beside a consumer at a broker.

The same record batches are in a tier (a directory) and on a broker of ours, in records of 100 bytes
and 1 KiB, unpacked and packed. In turn, each in a process of its own that has done it once before:
this data source's executor code (checks of digests and CRC, Arrow out), and librdkafka's consumer
(``consume`` of 10,000 messages at a time, its own check of CRC on). Printed are rows and MB of keys
and values for each CPU-second of that process, medians of the rounds.
"""

import argparse
import asyncio
import json
import resource
import statistics
import sys
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integration.remote_log.tiered_host import TOPIC, TieredHost
from tests.unit.pipeline.small_tier import SmallTier
from tidemark.records.batch import restamp
from tidemark.records.builder import Record, build_batch
from tidemark_broker.replication.partition import produce

BATCH_BYTES = 16 * 1024
SEGMENTS = 4
CODECS = {"none": 0, "lz4": 3, "zstd": 4}


def batches_of(size: int, codec: int, records: int) -> list[bytes]:
    """Of about so many records: words and digits, so that packing finds something."""
    count = max(1, BATCH_BYTES // size)
    words = b"".join(b"%d flight %x delayed " % (n, n * 2654435761 % 2**32) for n in range(size))
    values = [words[n * 7 : n * 7 + size - 8] for n in range(count)]
    made = build_batch([Record(b"%08d" % n, v, (), n) for n, v in enumerate(values)], codec=codec)
    found = []
    for number in range(max(SEGMENTS, records // count)):
        batch = bytearray(made)
        restamp(batch, 0, number * count, 1)
        found.append(bytes(batch))
    return found


def read_tier(place: str) -> Callable[[], tuple[int, int]]:
    """(rows, bytes) of all segments."""
    from tidemark_pipeline.options import parse
    from tidemark_pipeline.plan import plan_batch
    from tidemark_pipeline.reading import read_planned
    from tidemark_pipeline.survey import Survey

    options = parse({"topic": "t", "path": place, "decodeThreads": "1"})

    def read() -> tuple[int, int]:
        rows = size = 0
        with Survey(options) as survey:
            tasks = plan_batch(survey, options).tasks
        for task in tasks:
            for batch in read_planned(options, task):
                rows += batch.num_rows
                size += sum(batch.column(name).nbytes for name in ("key", "value"))
        return rows, size

    return read


def consume(place: str) -> Callable[[], tuple[int, int]]:
    """The same through a broker. ``place``: its address, and the end offset."""
    from confluent_kafka import Consumer, TopicPartition

    address, _, end = place.partition("/")

    def read() -> tuple[int, int]:
        rows = size = 0
        consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "bench",
                "check.crcs": True,
                "enable.auto.commit": False,
            }
        )
        consumer.assign([TopicPartition(TOPIC, 0, 0)])
        while rows < int(end):
            for message in consumer.consume(10_000, 1.0):
                rows += 1
                size += len(message.key()) + len(message.value())
        consumer.close()
        return rows, size

    return read


SIDES = {"tidemark": read_tier, "librdkafka": consume}


def measure_here(side: str, place: str) -> None:
    """In a process of its own: once to warm up, once measured."""
    read = SIDES[side](place)
    read()
    before = resource.getrusage(resource.RUSAGE_SELF)
    rows, size = read()
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(json.dumps({"rows": rows, "bytes": size, "cpu_s": cpu_s}))


async def measure(side: str, place: str) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.benchmarks.spark", "--side", side, "--place", place),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    if process.returncode:
        raise SystemExit(f"{side} failed")
    found: dict[str, float] = json.loads(output)
    return found


@contextmanager
def scratch() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="tidemark-bench-spark-") as folder:
        yield Path(folder)


async def compare(size: int, codec: str, records: int, rounds: int) -> None:
    """One line."""
    batches = batches_of(size, CODECS[codec], records)
    with scratch() as folder:
        (folder / "tier").mkdir()
        tier = SmallTier(folder / "tier", uuid.uuid4())
        count = max(1, BATCH_BYTES // size)
        each = -(-len(batches) // SEGMENTS)
        for first in range(0, len(batches), each):
            part = batches[first : first + each]
            tier.copy([b""] * (count * len(part)), batches=part)
        host = TieredHost(folder, folder / "unused")
        host.config |= {"segment.bytes": str(2**30), "local.retention.bytes": "-1"}
        await host.listen()
        await host.apply()
        for batch in batches:
            await produce.append(host.partition, batch, acks=1, timeout_ms=10_000)
        places = {
            "tidemark": str(tier.path),
            "librdkafka": f"127.0.0.1:{host.clients.port}/{count * len(batches)}",
        }
        found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for _ in range(rounds):
            for side, place in places.items():
                found[side].append(await measure(side, place))
        await host.close()
    texts = []
    for side, runs in found.items():
        assert {run["rows"] for run in runs} == {count * len(batches)}
        cpu_s = statistics.median(run["cpu_s"] for run in runs)
        rows, megabytes = runs[0]["rows"] / cpu_s / 1e6, runs[0]["bytes"] / cpu_s / 1e6
        texts.append(f"{side} {rows:.2f} million rows, {megabytes:.0f} MB")
    print(f"{size:5} bytes, {codec:4}: a CPU-second reads {'; '.join(texts)}", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--place")
    given = parser.parse_args()
    if given.side:
        measure_here(given.side, given.place)
        return
    for size in (100, 1024):
        for codec in CODECS:
            records = given.megabytes * 1_000_000 // size
            asyncio.run(compare(size, codec, records, given.rounds))


if __name__ == "__main__":
    main()
