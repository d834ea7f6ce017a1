"""Our codec reads and writes what kio does, byte for byte, and rejects every other frame."""

import datetime
import inspect
import random
import re
import struct
import textwrap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.consumer_group_heartbeat.v1.response import ConsumerGroupHeartbeatResponse
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v4.response import FetchResponse as LegacyFetchResponse
from kio.schema.fetch.v12.response import PartitionData
from kio.schema.fetch.v16.response import FetchResponse
from kio.serial.errors import SerialError
from kio.static.constants import EntityType

from tests.effort import examples
from tests.fuzz import frames
from tests.fuzz.agreement import check_message, kio_bytes
from tests.unit.api import api_requests as kafka
from tidemark.wire import codec
from tidemark.wire.bounds import ANY, Remaining
from tidemark.wire.control import BrokerStatusRequest
from tidemark.wire.entity import entity, wire
from tidemark.wire.framing import (
    FrameError,
    decode,
    decode_request,
    decode_response,
    encode,
)

ROOT = Path(__file__).parents[3]
BOTH_WAYS = [*frames.requests(), *frames.responses(), *frames.answers(), *frames.stored()]
_entity_types = st.sampled_from(BOTH_WAYS)
_randoms = st.randoms(use_true_random=False)
#: One partition without records, in front of its tagged fields.
_PARTITION = struct.pack(">ihqqq", 3, 0, 10, 10, 0) + b"\x00" + struct.pack(">i", -1) + b"\x01"
_DIVERGING = struct.pack(">iq", 7, 42) + b"\x00"
#: No error, no Apis, no throttling: the fields before the tagged fields.
_VERSIONS = struct.pack(">h", 0) + b"\x01" + struct.pack(">i", 0)


def test_messages_of_every_type_and_version_are_those_of_kio() -> None:
    for entity_type in BOTH_WAYS:
        # The first message has no nulls, so that every field is read once.
        for seed in range(3):
            assert check_message(entity_type, frames.write(random.Random(seed), entity_type))


def test_the_beginning_of_a_message_is_rejected() -> None:
    for entity_type in BOTH_WAYS:
        body = frames.write(random.Random(7), entity_type)
        for end in range(0, len(body), 1 + len(body) // 40):
            with pytest.raises(FrameError):
                decode(entity_type, body[:end])
            with pytest.raises(FrameError):
                decode(entity_type, memoryview(body)[:end])


@given(entity_type=_entity_types, rng=_randoms)
@settings(max_examples=examples(400))
def test_every_valid_message_is_read_to_its_end(entity_type: Any, rng: random.Random) -> None:
    body = frames.write(rng, entity_type)
    assert check_message(entity_type, body)
    value, end = codec.codec_of(entity_type).read(memoryview(body), 0, Remaining(ANY))
    assert end == len(body)
    assert value == decode(entity_type, body)
    assert decode(entity_type, encode(value)) == value


@given(entity_type=_entity_types, rng=_randoms, lies=st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=examples(600))
def test_a_malformed_message_is_read_alike_or_rejected(
    entity_type: Any, rng: random.Random, lies: float
) -> None:
    check_message(entity_type, frames.spoil(rng, frames.write(rng, entity_type, lies)))


@pytest.mark.parametrize(
    ("version", "fields"),
    [
        (9, {"acks": 2**15}),
        (9, {"acks": None}),
        (3, {"acks": -(2**15) - 1}),
        (9, {"timeout": datetime.timedelta(days=30)}),
        (9, {"timeout": 1000}),
        (3, {"transactional_id": "t" * 2**15}),
        (9, {"transactional_id": 7}),
    ],
)
def test_values_that_the_type_does_not_have_are_not_written(
    version: int, fields: dict[str, Any]
) -> None:
    request = kafka.produce(version, "orders", b"records", **fields)
    for write in (kio_bytes, encode):
        with pytest.raises((struct.error, TypeError, AttributeError, SerialError)):
            write(request)


@pytest.mark.parametrize(("version", "name"), [(3, None), (9, None), (3, "t" * 2**15)])
def test_a_string_that_must_not_be_null_or_too_long_is_not_written(
    version: int, name: str | None
) -> None:
    request = kafka.produce(version, name, b"records")  # type: ignore[arg-type]
    for write in (kio_bytes, encode):
        with pytest.raises((struct.error, TypeError, AttributeError, SerialError)):
            write(request)


@entity(EntityType.nested, 0)
class Example:
    """Entity of the example in the codec's docstring."""

    index: int = wire("int32")
    error_code: ErrorCode = wire("error_code")
    name: str = wire("string")
    replicas: tuple[int, ...] = wire("int32")


def test_generated_source_is_that_of_the_documentation() -> None:
    example = codec.codec_of(Example)
    source = inspect.getsource(example.read) + "\n" + inspect.getsource(example.write)
    assert textwrap.indent(source, "    ", str.strip) in codec.__doc__
    assert decode(Example, b"\0\0\0\7\0\3\2a\2\0\0\0\1\0") == Example(
        index=7, error_code=ErrorCode(3), name="a", replicas=(1,)
    )


@pytest.mark.parametrize("size", [0, 2, 12, 14, 32])
def test_a_known_tagged_field_has_the_size_that_it_claims(size: int) -> None:
    body = _PARTITION + b"\x01\x00" + bytes([size]) + _DIVERGING + bytes(20)
    with pytest.raises(FrameError, match=f"tagged field 0 does not have the {size} bytes"):
        decode(PartitionData, body)


def test_data_hidden_behind_a_tagged_field_never_reaches_kio() -> None:
    """For kio the padding of the first field is a second field with 2^32 elements."""
    # Tag 0 claims 8 bytes, but its content ends after one. The rest looks like another field.
    hidden = b"\x00\x05" + b"\xff\xff\xff\xff\x0f"
    tags = b"\x02" + b"\x00\x08\x01" + hidden + b"\x03\x01\x00"
    with pytest.raises(FrameError, match="tagged field 0 does not have the 8 bytes"):
        decode(ApiVersionsResponse, _VERSIONS + tags)
    frame = struct.pack(">i", 5) + _VERSIONS + tags
    with pytest.raises(FrameError, match="tagged field 0"):
        decode_response(ApiVersionsResponse, frame)


@pytest.mark.parametrize("tag", [b"\x80\x80\x80\x80\x10", b"\xff\xff\xff\xff\x7f"])
def test_a_varint_above_32_bits_is_rejected(tag: bytes) -> None:
    with pytest.raises(FrameError, match="longer than 32 bits"):
        decode(ApiVersionsResponse, _VERSIONS + b"\x01" + tag + b"\x01\x00")


@pytest.mark.parametrize("marker", [b"\x80", b"\xc9", b"\xfe"])
def test_an_optional_entity_has_no_other_negative_marker(marker: bytes) -> None:
    """kio reads an entity behind it, and Kafka reads null (KIP-893)."""
    before = struct.pack(">ih", 0, 0) + b"\x00\x00" + bytes(8)
    null = decode(ConsumerGroupHeartbeatResponse, before + b"\xff\x00")
    assert null.assignment is None
    with pytest.raises(FrameError, match="an entity's marker is -"):
        decode(ConsumerGroupHeartbeatResponse, before + marker + b"\x01\x00\x00")


def test_an_array_is_null_only_where_the_schema_allows_it() -> None:
    with pytest.raises(FrameError, match="responses is null, which it must not be"):
        decode(FetchResponse, bytes(10) + b"\x00\x00")
    with pytest.raises(FrameError, match="responses is null, which it must not be"):
        decode(LegacyFetchResponse, bytes(4) + struct.pack(">i", -1))
    partition = decode(PartitionData, _PARTITION.replace(b"\x01", b"\x01\x00"))
    assert partition.aborted_transactions is None


@pytest.mark.parametrize(
    "tags",
    [b"\xff\xff\xff\xff\x0f", b"\x01\x05\x7f", b"\x01", b"\x80", b"\x81\x08" + bytes(3000)],
    ids=["2^32", "a size behind the end", "cut", "half a varint", "1025"],
)
def test_the_tagged_fields_of_a_header_are_bounded_in_both_directions(tags: bytes) -> None:
    with pytest.raises(FrameError, match="an answer's header"):
        decode_response(FetchResponse, struct.pack(">i", 1) + tags)
    # The same fields in the header of a request.
    head = struct.pack(">hhih", 10004, 0, 1, 0)
    with pytest.raises(FrameError, match="a request's header"):
        decode_request(BrokerStatusRequest, head + tags)


def test_kio_reads_and_writes_no_message() -> None:
    """Only our codec checks lengths before it reserves memory for them."""
    sources = [
        path.relative_to(ROOT).as_posix()
        for room in ("tidemark", "operator", "broker_image", "pipeline", "cli")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"kio\.serial|kio_native", path.read_text("utf-8"))
    ]
    assert sources == []
