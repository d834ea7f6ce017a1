"""Encoding without copies, decoding of hostile bytes, and completeness of the message classes."""

import dataclasses
import datetime
import struct
import tracemalloc
import types
import typing
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.errors import ErrorCode

from tests.effort import examples
from tests.unit.api import api_requests as kafka
from tidemark.wire.bounds import STRING_BYTES_MAX, MessageBounds
from tidemark.wire.framing import (
    FrameError,
    decode,
    decode_response,
    encode,
    encode_response,
    encode_response_pieces,
)
from tidemark_broker.api import schema
from tidemark_broker.api.cluster import api_versions
from tidemark_broker.api.records import fetch, fetch_response
from tidemark_broker.api.schema import ZERO, timestamp
from tidemark_broker.api.serving.dispatcher import APIS
from tidemark_broker.replication.following.wire import ReplicaFetchRequest

ALL = {api.key: api for api in (*APIS, api_versions.api_of({}))}
SERVED = [(key, v) for key, api in ALL.items() for v in api.served]


def _request_type(key: int, version: int) -> Any:
    return ALL[key].request_type(version)


def _fetch_answer(*records: bytes) -> fetch.FetchResponse:
    parts = tuple(
        fetch_response.PartitionData(
            partition_index=number,
            error_code=ErrorCode.none,
            high_watermark=7,
            last_stable_offset=7,
            log_start_offset=0,
            aborted_transactions=None,
            records=data,
        )
        for number, data in enumerate(records)
    )
    topic = fetch_response.FetchableTopicResponse(topic="t", topic_id=None, partitions=parts)
    return fetch.FetchResponse(error_code=ErrorCode.none, responses=(topic,))


def _pieces(answer: fetch.FetchResponse, version: int) -> list[bytes]:
    return encode_response_pieces(answer, 5, fetch.API.answer_type(version))


def _kios(answer: fetch.FetchResponse, version: int) -> Any:
    """Return the same response as kio's entity."""
    # Every field is given explicitly, so that defaults of the broker's messages are checked as
    # well.
    parts = tuple(
        kafka.answer_part(
            1,
            version,
            "PartitionData",
            partition_index=part.partition_index,
            error_code=part.error_code,
            high_watermark=part.high_watermark,
            last_stable_offset=part.last_stable_offset,
            log_start_offset=part.log_start_offset,
            aborted_transactions=None,
            preferred_read_replica=-1,
            records=part.records,
        )
        for part in answer.responses[0].partitions
    )
    topic = kafka.answer_part(
        1, version, "FetchableTopicResponse", topic="t", topic_id=None, partitions=parts
    )
    return kafka.fit(
        kafka.answer_type(1, version),
        throttle_time=ZERO,
        error_code=ErrorCode.none,
        session_id=0,
        responses=(topic,),
    )


@pytest.mark.parametrize("version", range(4, 19))
def test_large_records_are_encoded_without_a_copy(version: int) -> None:
    large, small, larger = bytes(50_000), b"tiny", bytes(90_000)
    answer = _fetch_answer(large, small, larger)
    pieces = _pieces(answer, version)
    assert [piece is large or piece is larger for piece in pieces].count(True) == 2
    assert len(pieces) <= 5
    # The joined pieces equal kio's own encoding, and kio decodes them again.
    kios = _kios(answer, version)
    assert b"".join(pieces) == encode_response(kios, 5)
    assert decode_response(kafka.answer_type(1, version), b"".join(pieces)[4:]) == (5, kios)


def test_encoding_a_large_response_allocates_little() -> None:
    records = [bytes(1 << 20) for _ in range(10)]
    answer = _fetch_answer(*records)
    # Fill the caches first, so that only the encoding itself is measured.
    _pieces(answer, 12)
    tracemalloc.start()
    _pieces(answer, 12)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 200_000


@pytest.mark.parametrize("version", [12])
def test_a_response_without_records_is_one_piece(version: int) -> None:
    assert len(_pieces(_fetch_answer(b"", b""), version)) == 1


@given(data=st.data())
@settings(max_examples=examples(200))
def test_any_bytes_decode_or_raise_a_frame_error(data: st.DataObject) -> None:
    """kio's reader is native code. It may raise nothing but the known errors."""
    key, version = data.draw(st.sampled_from(SERVED))
    body = data.draw(st.binary(max_size=120))
    try:
        decode(_request_type(key, version), body)
    except FrameError:
        return


@given(data=st.data())
@settings(max_examples=examples(200))
def test_a_damaged_request_decodes_or_raises_a_frame_error(data: st.DataObject) -> None:
    version = data.draw(st.integers(3, 13))
    encoded = bytearray(encode(kafka.produce(version, "topic", kafka.batch(b"abc"), b"x" * 30)))
    # Change up to four bytes, then cut anywhere.
    for _ in range(data.draw(st.integers(0, 4))):
        encoded[data.draw(st.integers(0, len(encoded) - 1))] = data.draw(st.integers(0, 255))
    cut = bytes(encoded[: data.draw(st.integers(0, len(encoded)))])
    try:
        decode(_request_type(0, version), cut)
    except FrameError:
        return


HUGE = (b"\xff\xff\xff\xff\x0f", b"\xff\xff\xff\xff\x07", struct.pack(">i", 2**31 - 1))


@given(data=st.data())
@settings(max_examples=examples(200))
def test_wrong_lengths_are_rejected_before_memory_is_reserved(data: st.DataObject) -> None:
    """kio reserves the claimed length of an array. 2^32 elements would abort the process."""
    key, version = data.draw(st.sampled_from(SERVED))
    part = st.one_of(st.sampled_from(HUGE), st.sampled_from([b"", b"\x00", b"\x02", bytes(4)]))
    body = b"".join(data.draw(st.lists(part, max_size=12))) + bytes(data.draw(st.integers(0, 40)))
    tracemalloc.start()
    try:
        decode(_request_type(key, version), body)
    except FrameError:
        pass
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert peak < 1_000_000


@pytest.mark.parametrize(
    ("entity_type", "body"),
    [
        (_request_type(3, 1), struct.pack(">i", 2**31 - 1)),
        (_request_type(3, 12), b"\xff\xff\xff\xff\x0f"),
        (_request_type(0, 9), b"\x00\x00\x01" + bytes(4) + b"\xff\xff\xff\xff\x0f"),
        (_request_type(1, 4), bytes(17) + struct.pack(">i", 2**31 - 1)),
        (_request_type(1, 4), bytes(17) + struct.pack(">i", 9) + bytes(30)),
        (ReplicaFetchRequest, bytes(24) + b"\xff\xff\xff\xff\x0f"),
    ],
)
def test_an_array_must_fit_into_the_remaining_bytes(entity_type: Any, body: bytes) -> None:
    with pytest.raises(FrameError, match="elements in"):
        decode(entity_type, body)


def test_a_request_with_too_many_elements_is_rejected() -> None:
    # 1001 topics, with a limit of as many elements and of one less.
    many = kafka.metadata(1, (("t", None),) * 1001)
    body = encode(many)
    assert decode(type(many), body, bounds=MessageBounds(elements=1001)) == many
    with pytest.raises(FrameError, match="more elements"):
        decode(type(many), body, bounds=MessageBounds(elements=1000))


def test_a_string_has_kafkas_maximum_length() -> None:
    """A string of 95 MB was decoded to text, in 270 ms and several times its memory."""
    longest, bounds = "t" * STRING_BYTES_MAX, MessageBounds(string_bytes=STRING_BYTES_MAX)
    request = kafka.metadata(12, ((longest, None),))
    assert decode(type(request), encode(request), bounds=bounds) == request
    longer = kafka.metadata(12, ((longest + "t", None),))
    with pytest.raises(FrameError, match="a string of 32768 bytes"):
        decode(type(longer), encode(longer), bounds=bounds)


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_a_request_has_every_field_that_its_handler_may_read(key: int, version: int) -> None:
    """mypy checks handlers against the newest version. Older versions need the same fields, or
    defaults."""
    _has_all(ALL[key].request, _request_type(key, version))


def _has_all(message: Any, entity: Any) -> None:
    present = {field.name: field.type for field in dataclasses.fields(entity)}
    for field in dataclasses.fields(message):
        assert hasattr(entity, field.name)
        # Nested entities need the same check.
        inner, own = schema.entity_in(field.type), schema.entity_in(present.get(field.name))
        if inner is not None and own is not None:
            _has_all(inner, own)


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_a_response_has_every_field_that_its_version_writes(key: int, version: int) -> None:
    """The types must agree as well: a number in any version is a number in the broker's message."""
    _writes(ALL[key].answer, ALL[key].answer_type(version))


def _writes(message: Any, entity: Any) -> None:
    own = {field.name: field for field in dataclasses.fields(message)}
    for field in dataclasses.fields(entity):
        inner = schema.entity_in(own[field.name].type)
        if inner is not None:
            _writes(inner, schema.entity_in(field.type))
        else:
            assert _plain(own[field.name].type) == _plain(field.type), (message, field.name)


def _plain(annotation: Any) -> Any:
    """Reduce kio's number and text types to int and str. Nullability may
    differ between versions."""
    if isinstance(annotation, types.UnionType):
        annotation = next(a for a in typing.get_args(annotation) if a is not types.NoneType)
    if typing.get_origin(annotation) is tuple:
        inner = typing.get_args(annotation)
        return tuple[_plain(inner[0]), ...] if inner and not schema.entity_in(inner[0]) else tuple
    bases = (bool, int, float, str, bytes, datetime.timedelta, datetime.datetime)
    return next((base for base in bases if issubclass(annotation, base)), annotation)


def test_a_missing_field_of_a_message_is_an_error() -> None:
    with pytest.raises(TypeError, match="has no field"):
        schema.answer_type(fetch_response.FetchableTopicResponse, 1, 4)


def test_timestamps_keep_their_milliseconds() -> None:
    # Kafka's NO_TIMESTAMP.
    assert timestamp(-1) is None
    for value_ms in (0, 1, 1_700_000_000_123, 1_700_000_000_999):
        written = timestamp(value_ms)
        assert round(written.timestamp() * 1000) == value_ms
