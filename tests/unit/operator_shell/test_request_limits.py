"""Cost of requests for the control listener until they are complete."""

import asyncio
import struct

import pytest

from tidemark.wire.framing import FrameError
from tidemark_operator.listener import connection
from tidemark_operator.listener.connection import (
    LARGE_AT_ONCE,
    LARGE_BYTES,
    UNPROVEN_BYTES_MAX,
    Intake,
)


def stream(data: bytes) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    reader.feed_data(data)
    return reader


def announced(size: int, data: bytes = b"") -> asyncio.StreamReader:
    return stream(struct.pack(">i", size) + data)


async def test_until_a_secret_was_shown_requests_are_small() -> None:
    small = announced(3, b"abc")
    assert await Intake().read(small, proven=False) == b"abc"
    for proven, refused in ((False, True), (True, False)):
        # One byte above the limit for connections without a certificate.
        reader = announced(UNPROVEN_BYTES_MAX + 1, bytes(UNPROVEN_BYTES_MAX + 1))
        if refused:
            with pytest.raises(FrameError, match="65537 bytes"):
                await Intake().read(reader, proven=proven)
        else:
            assert await Intake().read(reader, proven=proven) is not None


async def test_an_idle_connection_without_a_certificate_is_closed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connection, "UNPROVEN_IDLE_S", 0.01)
    with pytest.raises(TimeoutError):
        await Intake().read(stream(b""), proven=False)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):  # the test's own timeout: the intake keeps waiting
            await Intake().read(stream(b""), proven=True)


async def test_a_started_request_has_to_arrive_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "WHOLE_WITHIN_S", 0.01)
    with pytest.raises(TimeoutError):
        await Intake().read(announced(10, b"never"), proven=True)


async def test_only_a_few_large_requests_are_read_concurrently() -> None:
    """Further requests stay in their sockets, so that TCP flow control stops the senders."""
    one = Intake()
    readers = [announced(LARGE_BYTES + 1) for _ in range(LARGE_AT_ONCE + 1)]
    reads = [asyncio.create_task(one.read(reader, proven=True)) for reader in readers]
    await asyncio.sleep(0)
    # All slots are taken by incomplete requests: even a complete one waits.
    readers[-1].feed_data(bytes(LARGE_BYTES + 1))
    await asyncio.sleep(0)
    assert not reads[-1].done()
    # Small requests need no slot.
    assert await one.read(announced(1, b"x"), proven=True) == b"x"
    # A completed request frees its slot for the next one.
    readers[0].feed_data(bytes(LARGE_BYTES + 1))
    assert await reads[0] == await reads[-1] == bytes(LARGE_BYTES + 1)
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
