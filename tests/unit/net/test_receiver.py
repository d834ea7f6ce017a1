"""Splitting of a byte stream into frames, for any sizes in which it arrives."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.wire.framing import FrameError
from tidemark.wire.receiver import FrameReceiver


def _framed(*bodies: bytes) -> bytes:
    return b"".join(struct.pack(">i", len(body)) + body for body in bodies)


def _feed(receiver: FrameReceiver, stream: bytes, step: int) -> list[bytes]:
    frames: list[bytes] = []
    position = 0
    while position < len(stream):
        buffer = receiver.get_buffer()
        size = min(step, len(buffer), len(stream) - position)
        assert size > 0
        buffer[:size] = stream[position : position + size]
        frames += [bytes(frame) for frame in receiver.received(size)]
        position += size
    return frames


@given(
    bodies=st.lists(st.binary(max_size=3000), max_size=12),
    step=st.integers(min_value=1, max_value=5000),
    scratch=st.integers(min_value=16, max_value=4096),
)
def test_frames_are_independent_of_the_chunk_sizes(
    bodies: list[bytes], step: int, scratch: int
) -> None:
    receiver = FrameReceiver(10_000, bytearray(scratch))
    assert _feed(receiver, _framed(*bodies), step) == bodies
    assert not receiver.in_frame


def test_connections_share_one_scratch_buffer() -> None:
    scratch = bytearray(64)
    one, two = FrameReceiver(1000, scratch), FrameReceiver(1000, scratch)
    stream_one, stream_two = _framed(b"a" * 200, b"b"), _framed(b"c" * 3, b"d" * 300)
    seen_one: list[bytes] = []
    seen_two: list[bytes] = []
    # The connections take turns. A partial frame must leave the shared buffer before the other
    # one uses it.
    for position in range(0, 400, 7):
        seen_one += _feed(one, stream_one[position : position + 7], 7)
        seen_two += _feed(two, stream_two[position : position + 7], 7)
    assert seen_one == [b"a" * 200, b"b"]
    assert seen_two == [b"c" * 3, b"d" * 300]


def test_a_large_frame_is_received_into_its_own_buffer() -> None:
    receiver = FrameReceiver(1 << 24)
    body = bytes(range(256)) * 20_000
    (frame,) = _feed(receiver, _framed(body), 1 << 20)
    assert frame == body


def test_a_length_alone_allocates_little() -> None:
    receiver = FrameReceiver(100 * 1024 * 1024)
    # A client that only claims 100 MiB must not make the broker reserve them.
    _feed(receiver, struct.pack(">i", 100 * 1024 * 1024) + b"x", 100)
    assert len(receiver.get_buffer()) <= 64 * 1024


@pytest.mark.parametrize("length", [-1, -(2**31), 1001, 2**31 - 1])
def test_an_invalid_length_is_rejected(length: int) -> None:
    receiver = FrameReceiver(1000)
    with pytest.raises(FrameError, match=rf"{length} bytes where at most 1000"):
        _feed(receiver, struct.pack(">i", length), 4)


def test_a_frame_may_have_a_minimum_length() -> None:
    receiver = FrameReceiver(1000, frame_bytes_min=8)
    assert _feed(receiver, _framed(bytes(8)), 100) == [bytes(8)]
    with pytest.raises(FrameError, match="7 bytes, which is less than any request has"):
        _feed(receiver, _framed(bytes(7)), 100)


def test_a_frame_may_be_empty() -> None:
    assert _feed(FrameReceiver(10), _framed(b"", b"x", b""), 100) == [b"", b"x", b""]
