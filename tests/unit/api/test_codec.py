"""Encoding without copies, decoding of hostile bytes, and the guard against misspelt fields."""

import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.unit.api import api_requests as kafka
from tidemark.wire.framing import FrameError, decode, decode_response, encode, encode_response
from tidemark_broker.api.codec import encode_answer
from tidemark_broker.api.dispatcher import APIS
from tidemark_broker.api.schema import ZERO, request_type_of, shapes_of, timestamp
from tidemark_broker.replication.following.wire import ReplicaFetchRequest

SERVED = [(api.key, v) for api in APIS for v in range(api.version_min, api.version_max + 1)]
SERVED += [(18, version) for version in range(5)]


def _fetch_answer(version: int, *records: bytes) -> Any:
    shapes = shapes_of(1, version)
    parts = tuple(
        shapes.of("PartitionData")(
            partition_index=number,
            error_code=ErrorCode.none,
            high_watermark=7,
            last_stable_offset=7,
            log_start_offset=0,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=data,
        )
        for number, data in enumerate(records)
    )
    topic = shapes.of("FetchableTopicResponse")(topic="t", topic_id=None, partitions=parts)
    return shapes.answer(
        throttle_time=ZERO, error_code=ErrorCode.none, session_id=0, responses=(topic,)
    )


@pytest.mark.parametrize("version", range(4, 17))
def test_record_bytes_leave_as_the_object_that_came_from_the_log(version: int) -> None:
    large, small, larger = bytes(50_000), b"tiny", bytes(90_000)
    answer = _fetch_answer(version, large, small, larger)
    pieces = encode_answer(answer, 5)
    assert [piece is large or piece is larger for piece in pieces].count(True) == 2
    assert len(pieces) <= 5
    assert b"".join(pieces) == encode_response(answer, 5)
    assert decode_response(kafka.answer_type(1, version), b"".join(pieces)[4:]) == (5, answer)


def test_encoding_a_large_answer_allocates_next_to_nothing() -> None:
    records = [bytes(1 << 20) for _ in range(10)]
    answer = _fetch_answer(12, *records)
    encode_answer(answer, 1)
    tracemalloc.start()
    encode_answer(answer, 1)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("version", [12])
def test_an_answer_without_records_is_one_piece(version: int) -> None:
    assert len(encode_answer(_fetch_answer(version, b"", b""), 1)) == 1


@given(data=st.data())
@settings(max_examples=200)
def test_any_bytes_are_a_request_or_a_frame_error(data: st.DataObject) -> None:
    """kio's reader is native code: nothing that it raises may be anything but an error we know."""
    key, version = data.draw(st.sampled_from(SERVED))
    body = data.draw(st.binary(max_size=120))
    try:
        decode(request_type_of(key, version), body)
    except FrameError:
        return


@given(data=st.data())
@settings(max_examples=200)
def test_a_cut_or_spoilt_request_is_a_request_or_a_frame_error(data: st.DataObject) -> None:
    version = data.draw(st.integers(3, 11))
    whole = bytearray(encode(kafka.produce(version, "topic", kafka.batch(b"abc"), b"x" * 30)))
    for _ in range(data.draw(st.integers(0, 4))):
        whole[data.draw(st.integers(0, len(whole) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(whole[: data.draw(st.integers(0, len(whole)))])
    try:
        decode(request_type_of(0, version), cut)
    except FrameError:
        return


HUGE = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", struct.pack(">i", 2**31 - 1))


@given(data=st.data())
@settings(max_examples=200)
def test_lengths_that_lie_are_refused_before_memory_is_reserved(data: st.DataObject) -> None:
    """kio reserves what an array claims: 2^32 elements would abort the whole process."""
    key, version = data.draw(st.sampled_from(SERVED))
    part = st.one_of(st.sampled_from(HUGE), st.sampled_from([b"", b"\x00", b"\x02", bytes(4)]))
    body = b"".join(data.draw(st.lists(part, max_size=12))) + bytes(data.draw(st.integers(0, 40)))
    tracemalloc.start()
    try:
        decode(request_type_of(key, version), body)
    except FrameError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("entity_type", "body"),
    [
        (request_type_of(3, 1), struct.pack(">i", 2**31 - 1)),
        (request_type_of(3, 12), b"\xff\xff\xff\xff\x0f"),
        (request_type_of(0, 9), b"\x00\x00\x01" + bytes(4) + b"\xff\xff\xff\xff\x0f"),
        (request_type_of(1, 4), bytes(17) + struct.pack(">i", 2**31 - 1)),
        (request_type_of(1, 4), bytes(17) + struct.pack(">i", 9) + bytes(30)),
        (ReplicaFetchRequest, bytes(24) + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_an_array_must_fit_into_what_is_left(entity_type: Any, body: bytes) -> None:
    with pytest.raises(FrameError, match="elements in"):
        decode(entity_type, body)


def test_a_request_of_very_many_elements_is_refused() -> None:
    many = kafka.metadata(1, (("t", None),) * 1001)
    body = encode(many)
    assert decode(type(many), body, elements_max=1001) == many
    with pytest.raises(FrameError, match="more elements"):
        decode(type(many), body, elements_max=1000)


def test_a_field_that_no_version_has_is_a_mistake() -> None:
    make = shapes_of(1, 4).of("PartitionData")
    with pytest.raises(TypeError, match="high_watermrk"):
        make(partition_index=0, error_code=ErrorCode.none, high_watermrk=1)


def test_times_are_written_to_the_millisecond() -> None:
    assert timestamp(-1) is None
    for value_ms in (0, 1, 1_700_000_000_123, 1_700_000_000_999):
        written = timestamp(value_ms)
        assert round(written.timestamp() * 1000) == value_ms
