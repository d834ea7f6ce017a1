"""``make bench-stored-forms``: size and read rate of segments in each form of the tier.

Segments of real flights as JSON, uncompressed by the producer, are copied to a local MinIO as they
are, compressed, encrypted, and both. Then ranges of 1 MiB at random places are read through the
broker's reader with empty caches, each form in turn. The last part rotates the key of the encrypted
segments. No figure is a pass or a failure.
"""

import argparse
import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tests.s3 import fresh_bucket
from tidemark.logfiles.offset_index import OffsetIndex
from tidemark.records.batch import iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark.tier.maintenance.rewrap import rewrap
from tidemark.tier.metadata.segment import SegmentEntry, new_segment
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.remote_storage_manager import SegmentData, stored_log_bytes
from tidemark.tier.stores.config import parse
from tidemark_broker.remote_log.segment_reader import Caches, SegmentReader
from tidemark_broker.remote_log.settings import RemoteSettings
from tidemark_cli.records import flights
from tidemark_devcluster.controlplane.minio import MinioServer

#: Default of consumers: ``max.partition.fetch.bytes``.
_RANGE_BYTES = 1 << 20
#: About the default ``batch.size`` of producers.
_BATCH_RECORDS = 50
OLD, NEW = (f"k{number}: {'A' * 41}{number}A=\n" for number in (1, 2))
#: Form -> whether it is compressed and encrypted.
FORMS = {
    "as it is": (False, False),
    "zstd": (True, False),
    "AES-256-GCM": (False, True),
    "zstd, AES-256-GCM": (True, True),
}


@dataclass(frozen=True, slots=True)
class StoredForm:
    """Segment in one form."""

    tier: Tier
    entry: SegmentEntry


def main() -> None:
    """Print sizes, rates, and the result of a rotation."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--ranges", type=int, default=40, help="ranges of a round")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        index = _write_log(log)
        with MinioServer.start(Path(folder) / "minio") as server:
            store = fresh_bucket(server)
            forms = {name: _copied(store, log, index, name) for name in FORMS}
            _print_reads(forms, options.rounds, options.ranges)
            _print_rotation(store)


def _write_log(path: Path) -> OffsetIndex:
    """Write the log of a segment; return its index."""
    index, position = OffsetIndex(0), 0
    with path.open("wb") as file:
        for number, batch in enumerate(_batches()):
            header = next(iter_headers(batch))[1]
            if number:
                index.append(header.last_offset, position)
            file.write(batch)
            position += len(batch)
    return index


def _batches() -> Iterator[bytes]:
    records: list[Record] = []
    base = 0
    for flight in flights.read():
        records.append(Record(flight.key, flight.value, (), flight.timestamp_ms))
        if len(records) == _BATCH_RECORDS:
            yield build_batch(records, base_offset=base, leader_epoch=1)
            base += len(records)
            records = []


def _copied(store: dict[str, object], log: Path, index: OffsetIndex, name: str) -> StoredForm:
    """Copy the segment in one form, and print its size."""
    # A tier of its own configuration for each form, on the same bucket.
    compress, encrypt = FORMS[name]
    tier = open_tier(parse({"s3": {**store, **({"encryptionKeys": OLD} if encrypt else {})}}))
    size = log.stat().st_size
    entry = new_segment(
        topic="flights",
        topic_id=uuid.UUID(int=1),
        partition=0,
        segment_id=uuid.uuid4(),
        start_offset=0,
        end_offset_inclusive=flights.FLIGHTS_TOTAL // _BATCH_RECORDS * _BATCH_RECORDS - 1,
        max_timestamp_ms=0,
        size_bytes=size,
        broker_id=1,
        event_time_ms=0,
        leader_epochs=((1, 0),),
        leader_epoch=1,
        tiered_epoch=0,
    )
    aux = Aux(
        offset_index=index.to_bytes(), time_index=b"", leader_epochs=b"", producer_snapshot=b""
    )
    # The copy includes hashing, compression, encryption and the upload.
    before_s, before_cpu_s = time.monotonic(), time.process_time()
    copied = tier.segments.copy_segment(entry, SegmentData(log, size, aux, compress))
    seconds, cpu_s = time.monotonic() - before_s, time.process_time() - before_cpu_s
    entry = replace(entry, custom_metadata=copied.custom_metadata, digests=copied.digests)
    stored = stored_log_bytes(entry)
    print(
        f"{name}: {size / 1e6:.1f} MB stored as {stored / 1e6:.1f} MB, ratio {stored / size:.3f}; "
        f"copied at {size / 1e6 / seconds:.0f} MB/s, {cpu_s / (size / 1e9):.2f} CPU-s/GB"
    )
    return StoredForm(tier, entry)


def _print_reads(forms: dict[str, StoredForm], rounds: int, ranges: int) -> None:
    """Read the same random ranges of each form in turn, and print medians of the rounds."""
    # Rates of this process, which shares the machine with the store.
    rates: dict[str, list[float]] = {name: [] for name in forms}
    cpu: dict[str, list[float]] = {name: [] for name in forms}
    for number in range(rounds + 1):
        for name, form in forms.items():
            seconds, cpu_s, size = _read(form, random.Random(number), ranges)
            # The first round warms up the store and the connections.
            if number:
                rates[name].append(size / 1e6 / seconds)
                cpu[name].append(cpu_s / (size / 1e9))
    for name in forms:
        # Both rates of a round are of the same moment, so a change of the machine's load cancels.
        ratios = sorted(
            rate / plain for rate, plain in zip(rates[name], rates["as it is"], strict=True)
        )
        quarter = len(ratios) // 4
        print(
            f"{name}: ranges of 1 MiB read at {statistics.median(rates[name]):.0f} MB/s, "
            f"{statistics.median(ratios):.2f} of the plain rate of the same round (quartiles "
            f"{ratios[quarter]:.2f} to {ratios[-1 - quarter]:.2f} of {len(ratios)} rounds), "
            f"{statistics.median(cpu[name]):.2f} CPU-s/GB"
        )


def _read(form: StoredForm, rng: random.Random, ranges: int) -> tuple[float, float, int]:
    """Return seconds, CPU-seconds of this process, and bytes of records."""
    size = 0
    # Indexes stay cached, as in a broker; the chunks of each range are read from the store.
    caches = Caches(RemoteSettings(chunk_cache_bytes=1))
    before_s, before_cpu_s = time.monotonic(), time.process_time()
    for _ in range(ranges):
        offset = rng.randrange(form.entry.end_offset_inclusive)
        data, _, _ = SegmentReader(form.tier, caches, form.entry).read(offset, _RANGE_BYTES)
        size += len(data)
    return time.monotonic() - before_s, time.process_time() - before_cpu_s, size


def _print_rotation(store: dict[str, object]) -> None:
    """Rotate the key of the encrypted segments, and print the bytes of logs that changed."""
    tier = open_tier(parse({"s3": {**store, "encryptionKeys": NEW + OLD}}))
    before = _versions(tier)
    report = rewrap(tier)
    after = _versions(tier)
    logs = sum(size for key, (size, at_ms) in after.items() if before[key] != (size, at_ms))
    print(f"rotation: {report.rewrapped} segments rewrapped, {logs} bytes of logs written")


def _versions(tier: Tier) -> dict[str, tuple[int, int]]:
    """Return size and time of the last write of each log object."""
    return {
        info.key: (info.size_bytes, info.last_modified_ms)
        for info in tier.store.list("data/")
        if info.key.endswith(".log")
    }


if __name__ == "__main__":
    main()
