"""Records that confluent-kafka reads, as sums that Spark can compute as well.

Each record is a line of all its columns, the line's MD5 is truncated to 64 bits, and these are
added up. Rows may therefore come in any order, and a missing, duplicate or different row changes
the sum. A record costs 16 bytes here regardless of its size, so that the sums of any range of
offsets are known.
"""

import hashlib
from array import array
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, Consumer, KafkaError, Message, TopicPartition
from pyspark.sql import DataFrame
from pyspark.sql import functions as f

_ABSENT = "-"
_MODULUS = 2**64
_TOLD = 250_000

#: Of a row with the source's columns; the same as :func:`line_of`.
_LINE = """concat_ws('|',
    cast(partition as string),
    cast(offset as string),
    coalesce(cast(unix_millis(timestamp) as string), '-'),
    cast(timestampType as string),
    cast(leaderEpoch as string),
    coalesce(hex(key), '-'),
    coalesce(hex(value), '-'),
    coalesce(array_join(transform(headers,
        h -> concat(hex(h.key), '=', coalesce(hex(h.value), '-'))), ','), ''))"""
_HASH = f"cast(conv(substr(md5(encode({_LINE}, 'UTF-8')), 1, 16), 16, 10) as decimal(20, 0))"


@dataclass(frozen=True, slots=True)
class Sums:
    """Number of records in a partition, and the sum of their hashes."""

    records: int = 0
    hashes: int = 0


def sums(frame: DataFrame) -> dict[int, Sums]:
    """Return Spark's sums by partition; a partition without rows is missing."""
    # Hashes are added modulo 2^64, so the order of rows does not matter.
    rows = frame.groupBy("partition").agg(
        f.count("*").alias("records"), f.sum(f.expr(_HASH)).alias("hashes")
    )
    return {r["partition"]: Sums(r["records"], int(r["hashes"]) % _MODULUS) for r in rows.collect()}


def line_of(message: Message) -> str:
    """All columns of a record."""
    kind, time_ms = message.timestamp()
    headers = ",".join(
        f"{name.encode().hex().upper()}={_hex(value)}" for name, value in message.headers() or ()
    )
    return "|".join(
        (
            str(message.partition()),
            str(message.offset()),
            str(time_ms),
            "1" if kind == TIMESTAMP_LOG_APPEND_TIME else "0",
            str(message.leader_epoch()),
            _hex(message.key()),
            _hex(message.value()),
            headers,
        )
    )


def _hex(value: bytes | None) -> str:
    return _ABSENT if value is None else value.hex().upper()


class Truth:
    """A topic as a consumer with ``read_committed`` gets it."""

    def __init__(self, bootstrap: str, topic: str, partitions: int) -> None:
        self._bootstrap, self._topic = bootstrap, topic
        self._offsets = [array("q") for _ in range(partitions)]
        self._hashes = [array("Q") for _ in range(partitions)]

    def read_on(self, say: Callable[[int], None] = lambda _: None) -> None:
        """Read from the last position to the current end, while no client writes."""
        # EOF events tell when each partition has been read to its end.
        consumer = Consumer(
            {
                "bootstrap.servers": self._bootstrap,
                "group.id": "nobody",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "auto.offset.reset": "error",
                "log_level": 2,
            }
        )
        ends = range(len(self._offsets))
        consumer.assign([TopicPartition(self._topic, end, self._next(end)) for end in ends])
        waiting = set(ends)
        count = told = self.records
        while waiting:
            for message in consumer.consume(10_000, 1.0):
                error = message.error()
                if error is None:
                    # Sixteen bytes per record, whatever its size: an offset and a truncated hash.
                    digest = hashlib.md5(line_of(message).encode(), usedforsecurity=False).digest()
                    self._offsets[message.partition()].append(message.offset())
                    self._hashes[message.partition()].append(int.from_bytes(digest[:8], "big"))
                    count += 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    waiting.discard(message.partition())
                elif not error.retriable():
                    raise SystemExit(f"confluent-kafka: {error}")
            if count - told >= _TOLD:
                told = count
                say(count)
        consumer.close()

    @property
    def records(self) -> int:
        """Number of records in all partitions."""
        return sum(map(len, self._offsets))

    def of(
        self, starts: Mapping[int, int] | None = None, ends: Mapping[int, int] | None = None
    ) -> dict[int, Sums]:
        """The sums of the offsets from ``starts`` up to, not including, ``ends``, by partition."""
        found = {}
        for partition, (kept, hashed) in enumerate(zip(self._offsets, self._hashes, strict=True)):
            offsets, hashes = np.frombuffer(kept, np.int64), np.frombuffer(hashed, np.uint64)
            # Offsets ascend, so any range is found by bisection.
            first = np.searchsorted(offsets, (starts or {}).get(partition, 0))
            behind = np.searchsorted(offsets, (ends or {}).get(partition, 2**62))
            if first < behind:
                total = int(np.add.reduce(hashes[first:behind], dtype=np.uint64))
                found[partition] = Sums(int(behind - first), total)
        return found

    def _next(self, partition: int) -> int:
        offsets = self._offsets[partition]
        return offsets[-1] + 1 if offsets else 0
