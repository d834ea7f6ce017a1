"""Server of one log, in a process of its own.

Arguments: the directory of the log, and the size of its segments. It prints its port. A request is
an :class:`Order` as JSON, a response the records of a read.
"""

import asyncio
import json
import sys
import uuid
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import uvloop

from tidemark.records.builder import Record, build_batch
from tidemark.wire.receiver import Frame
from tidemark_broker.admission.connection_limits import ConnectionLimits
from tidemark_broker.admission.response_memory import ResponseMemory
from tidemark_broker.log import (
    LogConfig,
    NotCached,
    OffsetOutOfRange,
    appending,
    reading,
    retention,
    truncation,
)
from tidemark_broker.log.opening import create_log
from tidemark_broker.log.segment_list import OpenSegments
from tidemark_broker.net.connections import Connections
from tidemark_broker.net.server import KafkaServer

T0 = 1_700_000_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Order to the server.

    ``do``: ``read``, ``append`` batches of one record, ``truncate``, or ``delete`` old segments.
    ``size``: bytes to read, of a record, or of the log that remains.
    """

    do: str
    offset: int = 0
    size: int = 0
    seed: int = 0

    def frame(self) -> bytes:
        """Return the request: a Fetch by its first bytes, of which one runs at a time."""
        body = b"\0\1" + bytes(6) + json.dumps(asdict(self)).encode()
        return len(body).to_bytes(4, "big") + body


class LogServer:
    """Performs orders on one log."""

    def __init__(self, directory: Path, segment_bytes: int) -> None:
        self._segment_bytes = segment_bytes
        self._log = create_log(
            directory,
            topic="t",
            topic_id=uuid.UUID(int=1),
            partition=0,
            config=LogConfig(segment_bytes=segment_bytes),
            open_segments=OpenSegments(),
        )

    async def serve(self, frame: Frame, memory: ResponseMemory) -> Sequence[bytes]:
        data = self._records(Order(**json.loads(bytes(frame[8:]))))
        return [len(data).to_bytes(4, "big"), data]  # type: ignore[list-item]

    def _records(self, order: Order) -> bytes | memoryview:
        log = self._log
        match order.do:
            case "append":
                random = Random(order.seed)
                record = Record(b"k", random.randbytes(order.size), (), T0)
                appending.append_as_leader(log, build_batch([record]), leader_epoch=0, now_ms=T0)
            case "truncate":
                truncation.truncate_to(log, order.offset)
            case "delete":
                log.advance_high_watermark(log.next_offset)
                log.config = LogConfig(
                    segment_bytes=self._segment_bytes, retention_bytes=order.size
                )
                retention.apply_retention(log, T0, tiered=None)
            case _:
                return self._read(order)
        return b""

    def _read(self, order: Order) -> bytes | memoryview:
        offset, end = order.offset, self._log.next_offset
        try:
            return reading.read_cached(
                self._log,
                offset,
                max_bytes=order.size,
                up_to_offset=end,
                min_one=True,
                for_socket=True,
            ).data
        except OffsetOutOfRange:
            return b""
        except NotCached:
            return reading.read(
                self._log, offset, max_bytes=order.size, up_to_offset=end, min_one=True
            ).data


async def main(directory: Path, segment_bytes: int) -> None:
    """Serve until the process is ended."""
    log = LogServer(directory, segment_bytes)
    server = KafkaServer(lambda _: log.serve, Connections(ConnectionLimits()), "TEST")
    await (await server.bind("127.0.0.1", 0)).listen()
    print(server.port, flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]), int(sys.argv[2])))
