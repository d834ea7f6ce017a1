"""Input that is no Kafka request costs its own connection and one log line, and affects no
other client.
"""

import asyncio
import contextlib
import random
import struct
from collections.abc import AsyncIterator
from pathlib import Path

from tests.integration.broker.broker_process import BrokerProcess, StartBrokers
from tests.integration.broker.kafka_clients import consume_async, produce_async
from tests.integration.broker.scripted_controller import ScriptedController

PRODUCE, FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS, API_VERSIONS = 0, 1, 2, 3, 21, 18
REPLICA_FETCH, UNKNOWN = 10010, 999
LIMIT = 1_000_000
INT32_MAX = 2**31 - 1
#: The largest count that an unsigned varint of a compact array can claim.
VARINT_MAX = b"\xff\xff\xff\xff\x0f"


def framed(data: bytes) -> bytes:
    return struct.pack(">i", len(data)) + data


def request(key: int, version: int, body: bytes, *, flexible: bool = False) -> bytes:
    """A frame with a good header and that body."""
    header = struct.pack(">hhih", key, version, 7, 1) + b"c" + (b"\x00" if flexible else b"")
    return framed(header + body)


def noise(count: int, seed: int) -> bytes:
    return random.Random(seed).randbytes(count)


# Each entry has one fault at one level: frame, header, body, or another protocol.
HOSTILE = {
    "a length above the limit": struct.pack(">i", LIMIT + 1),
    "the largest length": struct.pack(">i", INT32_MAX) + bytes(100),
    "a negative length": struct.pack(">i", -1) + bytes(100),
    "an empty frame": framed(b""),
    "half a header": framed(b"\x00\x03\x00"),
    "a client id longer than the frame": framed(struct.pack(">hhih", METADATA, 1, 7, 32767)),
    "an unknown api": request(UNKNOWN, 0, b""),
    "an api below zero": request(-5, 0, b""),
    "an unknown version": request(METADATA, 99, b""),
    "a version below zero": request(FETCH, -1, b""),
    "a body that ends early": request(LIST_OFFSETS, 1, b"\xff\xff"),
    "2^31 - 1 topics": request(METADATA, 1, struct.pack(">i", INT32_MAX)),
    "2^32 - 2 topics": request(METADATA, 12, VARINT_MAX, flexible=True),
    "a count of -2": request(METADATA, 1, struct.pack(">i", -2)),
    "2^31 - 1 partitions": request(
        DELETE_RECORDS, 0, struct.pack(">ih", 1, 1) + b"t" + struct.pack(">i", INT32_MAX)
    ),
    "more topics than one request may name": request(
        METADATA, 1, struct.pack(">i", 300_000) + struct.pack(">h", 1) * 300_000
    ),
    "records longer than the frame": request(
        PRODUCE,
        8,
        struct.pack(">hhiih", -1, -1, 1000, 1, 1) + b"t" + struct.pack(">iii", 1, 0, INT32_MAX),
    ),
    "an endless varint": request(METADATA, 12, b"\xff" * 50, flexible=True),
    "tags without end": request(API_VERSIONS, 3, b"\x02a\x02b" + VARINT_MAX, flexible=True),
    "a topic that is no text": request(METADATA, 1, struct.pack(">ih", 1, 4) + b"\xff\xfe\xfd\xfc"),
    "noise as a private request": request(REPLICA_FETCH, 0, noise(400, 1), flexible=True),
    "noise in a frame": framed(b"\x00\x01\x00\x0c" + noise(500, 2)),
    "noise": b"\x7f" + noise(5000, 3),
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(64),
    "HTTP": b"GET /metrics HTTP/1.1\r\nHost: broker\r\n\r\n",
}


class Raw:
    """A socket to a broker's listener."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @property
    def name(self) -> str:
        """As the broker's log names it."""
        host, port = self.writer.get_extra_info("sockname")[:2]
        return f"{host}:{port}"

    async def closed_without_an_answer(self) -> bool:
        async with asyncio.timeout(10):
            with contextlib.suppress(ConnectionResetError):
                return await self.reader.read() == b""
        return True


@contextlib.asynccontextmanager
async def connected(broker: BrokerProcess) -> AsyncIterator[Raw]:
    host, port = broker.listener.split(":")
    raw = Raw(*await asyncio.open_connection(host, int(port)))
    try:
        yield raw
    finally:
        raw.writer.close()
        with contextlib.suppress(ConnectionError):
            await raw.writer.wait_closed()


async def versions_answered(raw: Raw) -> bool:
    # ApiVersions needs no state of the broker, so it tells whether a connection is served.
    raw.writer.write(request(API_VERSIONS, 0, b""))
    async with asyncio.timeout(10):
        (length,) = struct.unpack(">i", await raw.reader.readexactly(4))
        correlation_id, error = struct.unpack_from(">ih", await raw.reader.readexactly(length))
    return (correlation_id, error) == (7, 0)


def resident_bytes(broker: BrokerProcess) -> int:
    pages = int(Path(f"/proc/{broker.pid}/statm").read_text().split()[1])
    return pages * 4096


async def test_hostile_input_costs_its_connection_and_one_log_line(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1, socket_request_max_bytes=LIMIT)
    await controller.create_topic("flights", [(1,)])
    assert await produce_async(broker.listener, "flights", [b"before"]) == [0]
    # Warm up first, so that memory below is that of the hostile input.
    before = resident_bytes(broker)
    async with connected(broker) as bystander:
        for what, data in HOSTILE.items():
            async with connected(broker) as raw:
                raw.writer.write(data)
                assert await raw.closed_without_an_answer(), what
            # The log line names the client's address, so it can be found.
            lines = [line for line in broker.log_text().splitlines() if raw.name in line]
            assert len(lines) == 1, (what, lines)
            assert " WARNING " in lines[0], what
            assert await versions_answered(bystander), what
    assert "Traceback" not in broker.log_text()
    # Counts of 2^31 must not become allocations.
    assert resident_bytes(broker) - before < 100_000_000
    assert await produce_async(broker.listener, "flights", [b"after"]) == [1]
    assert await consume_async(broker.listener, "flights", 2) == [(0, b"before"), (1, b"after")]
    assert await broker.stop() == 0


async def test_endless_frames_hold_no_memory_and_delay_no_client(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    await controller.create_topic("flights", [(1,)])
    before = resident_bytes(broker)
    async with contextlib.AsyncExitStack() as stack:
        # A hundred clients announce 100 MB each, and send 100 bytes.
        for _ in range(100):
            raw = await stack.enter_async_context(connected(broker))
            raw.writer.write(struct.pack(">i", 100_000_000) + bytes(100))
            await raw.writer.drain()
        assert await produce_async(broker.listener, "flights", [b"x"] * 10) == list(range(10))
        # Memory grows with what was received, not with what was announced.
        assert resident_bytes(broker) - before < 40_000_000
    async with connected(broker) as again:
        assert await versions_answered(again)


async def test_random_bodies_in_valid_headers_do_not_harm_the_broker(
    controller: ScriptedController, start_brokers: StartBrokers
) -> None:
    [broker] = await start_brokers(1)
    await controller.create_topic("flights", [(1,)])
    # A fixed seed: a failure can be repeated.
    chosen = random.Random(1)
    for _ in range(300):
        key = chosen.choice([PRODUCE, FETCH, LIST_OFFSETS, METADATA, DELETE_RECORDS, REPLICA_FETCH])
        body = chosen.randbytes(chosen.randrange(80))
        async with connected(broker) as raw:
            raw.writer.write(
                request(key, chosen.randrange(13), body, flexible=chosen.random() < 0.5)
            )
            # The end of the input tells the broker that nothing follows.
            raw.writer.write_eof()
            # However it is parsed, an answer and a closed connection are both allowed.
            await raw.closed_without_an_answer()
    assert "Traceback" not in broker.log_text()
    assert await produce_async(broker.listener, "flights", [b"x"]) == [0]
