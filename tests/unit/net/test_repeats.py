"""A repeated request is the one that the codec reads from the same bytes, for any bytes."""

import tracemalloc
import uuid
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.effort import examples
from tests.unit.api import api_requests as kafka
from tidemark.wire import repeats
from tidemark.wire.codec import LARGE_BYTES
from tidemark.wire.framing import FrameError, decode_request, encode_request, peek_request
from tidemark.wire.receiver import Frame
from tidemark.wire.repeats import Repeats, response_template
from tidemark_broker.api.records import produce
from tidemark_broker.api.serving.dispatcher import APIS

VERSIONS = range(3, 14)
TOPIC_ID = uuid.UUID(int=7)


def _frame(version: int, records: bytes | None, *, client: str = "c", name: str = "t") -> bytes:
    request = kafka.produce(version, name, records, topic_id=TOPIC_ID)
    return encode_request(request, 1, client)[4:]


def _decoded(frame: Frame) -> Any:
    _, version, _ = peek_request(frame)
    return decode_request(produce.API.request_type(version), frame)


def _learn(known: Repeats[Any, Any], frame: Frame) -> None:
    request = _decoded(frame)
    if produce.is_repeatable(request):
        known.learn(frame, peek_request(frame)[1], request, produce.with_records)


def _found(known: Repeats[Any, Any], frame: Frame) -> Any:
    """The request that the frame repeats, with its own records."""
    found = known.find(frame, peek_request(frame)[1])
    return None if found is None else produce.with_records(found[0].request, found[1])


@pytest.mark.parametrize("version", VERSIONS)
def test_request_with_other_records_is_known(version: int) -> None:
    known: Repeats[Any, Any] = Repeats()
    first = _frame(version, b"abc")
    assert _found(known, first) is None
    _learn(known, first)
    for records in (b"abc", b"abd", b"", b"x" * 126, b"x" * 127, b"x" * 20_000):
        frame = _frame(version, records)
        assert _found(known, frame) == _decoded(frame)
    # Null records are not a batch. Other requests, and other versions, have other fronts.
    assert _found(known, _frame(version, None)) is None
    assert _found(known, _frame(version, b"abc", client="d")) is None
    other = version - 1 if version > 3 else 4
    assert _found(known, _frame(other, b"abc")) is None


def _changed(frame: bytes, edits: list[tuple[int, int, bytes]]) -> bytes:
    """The frame with bytes replaced behind the correlation id: (position, number, new bytes)."""
    for at, number, data in edits:
        at = 8 + at % (len(frame) - 7)
        frame = frame[:at] + data + frame[at + number :]
    return frame


_edits = st.lists(
    st.tuples(st.integers(0, 200), st.integers(0, 4), st.binary(max_size=4)), max_size=2
)


@given(
    version=st.sampled_from(VERSIONS),
    records=st.lists(st.binary(max_size=140), min_size=2, max_size=2),
    first_edits=_edits,
    edits=_edits,
)
@settings(max_examples=examples(300))
def test_damaged_requests_are_read_as_the_codec_reads_them(
    version: int,
    records: list[bytes],
    first_edits: list[tuple[int, int, bytes]],
    edits: list[tuple[int, int, bytes]],
) -> None:
    known: Repeats[Any, Any] = Repeats()
    first = _changed(_frame(version, records[0]), first_edits)
    try:
        _learn(known, first)
    except FrameError:
        return
    for frame in (_frame(version, records[1]), _changed(_frame(version, records[1]), edits)):
        for damaged in (frame, frame[:-1], frame + b"\x00", frame + frame[8:]):
            found = _found(known, damaged)
            # An unknown frame is read by the codec, so only a known one can differ.
            if found is not None:
                assert found == _decoded(damaged)


def test_requests_of_one_api_are_remembered() -> None:
    """A connection has one memory, and a look-up does not compare the Api key."""
    assert [api.name for api in APIS if api.repeats is not None] == [produce.API.name]
    known: Repeats[Any, Any] = Repeats()
    frame = _frame(9, b"abc")
    _learn(known, frame)
    another = bytes([0, 1]) + frame[2:]
    assert peek_request(another)[0] != peek_request(frame)[0]
    assert _found(known, another) is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_request_with_bytes_behind_its_end_is_not_remembered(version: int) -> None:
    known: Repeats[Any, Any] = Repeats()
    first = _frame(version, b"abc")
    # The codec ignores what follows, which here looks like another field of records.
    _learn(known, first + first[first.index(b"abc") - 4 :])
    assert _found(known, first) is None


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("name_bytes", [LARGE_BYTES, 16_383, 20_000])
def test_request_with_a_long_name_is_not_remembered(version: int, name_bytes: int) -> None:
    """The codec leaves a long name apart, as it does large records."""
    known: Repeats[Any, Any] = Repeats()
    # Records like those with which the front of a request is found.
    records = bytes(LARGE_BYTES)
    for letter in "a\0":
        _learn(known, _frame(version, records, name=letter * name_bytes))
    for name in ("b" * name_bytes, "b" * (LARGE_BYTES + 1)):
        frame = _frame(version, records, name=name)
        assert _found(known, frame) in (None, _decoded(frame))


def test_number_of_remembered_requests_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "MISSES_MAX", 40)
    known: Repeats[Any, Any] = Repeats()
    frames = [_frame(9, b"abc", name=f"t{number}") for number in range(100, 140)]
    for frame in frames:
        _learn(known, frame)
    found = [frame for frame in frames if _found(known, frame) is not None]
    assert found == frames[: repeats.KEPT_MAX]
    # Later the client uses other topics, and the first ones are forgotten.
    _learn(known, frames[-1])
    assert [frame for frame in frames if _found(known, frame) is not None] == frames[-1:]


def test_number_of_lengths_is_limited() -> None:
    known: Repeats[Any, Any] = Repeats()
    frames = [_frame(9, b"abc", name="t" * number) for number in (1, 2, 3, 4, 5)]
    frames.append(_frame(9, b"abc", client="c" * repeats.FRONT_BYTES_MAX))
    for frame in frames:
        _learn(known, frame)
    found = [frame for frame in frames if _found(known, frame) is not None]
    assert found == frames[: repeats.LENGTHS_MAX]


def test_frame_in_a_large_buffer_is_left_to_the_codec() -> None:
    known: Repeats[Any, Any] = Repeats()
    frame = _frame(9, b"abc")
    view = memoryview(bytearray(frame)).toreadonly()
    _learn(known, view)
    _learn(known, frame)
    assert _found(known, frame) is not None
    assert _found(known, view) is None


def test_response_template_replaces_correlation_id_and_number() -> None:
    def frame(correlation_id: int, number: int) -> bytes:
        number_bytes = number.to_bytes(8, signed=True)
        return bytes(4) + correlation_id.to_bytes(4, signed=True) + b"abc" + number_bytes + b"de"

    made = response_template(frame(1, 5), frame(1, ~5))
    for correlation_id, number in ((0, 0), (-1, -1), (2**31 - 1, 2**63 - 1)):
        assert made(correlation_id, number) == frame(correlation_id, number)
    # Frames that differ elsewhere are a bug of the caller.
    with pytest.raises(AssertionError):
        response_template(frame(1, 5), frame(2, ~5))


def test_remembered_request_takes_little_memory() -> None:
    """10,000 connections may remember 16 requests each."""

    def response(number: int) -> bytes:
        return bytes(60) + number.to_bytes(8, signed=True) + bytes(30)

    frames = [_frame(9, b"abc", name=f"topic-{number}") for number in range(10, 26)]
    connections: list[Repeats[Any, Any]] = []
    # What all connections share is created with the first one.
    for _ in range(11):
        connections.append(Repeats())
        for frame in frames:
            _learn(connections[-1], frame)
            found = connections[-1].find(frame, 9)
            assert found is not None
            found[0].response = response_template(response(5), response(~5))
        if len(connections) == 1:
            tracemalloc.start()
    try:
        used_bytes, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert used_bytes < 10 * len(frames) * 1_500
