"""The walk over a frame and kio's reader agree on its message, or the frame is rejected."""

import random
import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kio.schema.api_versions.v3.response import ApiVersionsResponse
from kio.schema.fetch.v4.response import FetchResponse as LegacyFetchResponse
from kio.schema.fetch.v12.response import PartitionData
from kio.schema.fetch.v16.response import FetchResponse

from tests.effort import examples
from tests.fuzz import frames
from tests.fuzz.agreement import check_message
from tidemark.wire.bounds import end_of_entity
from tidemark.wire.control import BrokerStatusRequest
from tidemark.wire.framing import (
    FrameError,
    decode,
    decode_request,
    decode_response,
    encode,
)

ROOT = Path(__file__).parents[3]
BOTH_WAYS = [*frames.requests(), *frames.responses()]
_entity_types = st.sampled_from(BOTH_WAYS)
_randoms = st.randoms(use_true_random=False)
#: One partition without records, in front of its tagged fields.
_PARTITION = struct.pack(">ihqqq", 3, 0, 10, 10, 0) + b"\x00" + struct.pack(">i", -1) + b"\x01"
_DIVERGING = struct.pack(">iq", 7, 42) + b"\x00"
#: No error, no Apis, no throttling: the fields before the tagged fields.
_VERSIONS = struct.pack(">h", 0) + b"\x01" + struct.pack(">i", 0)


@given(entity_type=_entity_types, rng=_randoms)
@settings(max_examples=examples(400))
def test_every_valid_message_is_read_to_its_end(entity_type: Any, rng: random.Random) -> None:
    body = frames.write(rng, entity_type)
    assert check_message(entity_type, body)
    assert end_of_entity(entity_type, body) == len(body)
    # The walk has read everything, so decoding and encoding give the same message.
    value = decode(entity_type, body)
    assert decode(entity_type, encode(value)) == value


@given(entity_type=_entity_types, rng=_randoms, lies=st.sampled_from([0.0, 0.02, 0.2]))
@settings(max_examples=examples(600))
def test_a_malformed_message_is_read_alike_or_rejected(
    entity_type: Any, rng: random.Random, lies: float
) -> None:
    check_message(entity_type, frames.spoil(rng, frames.write(rng, entity_type, lies)))


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


def test_an_array_is_null_only_where_the_schema_allows_it() -> None:
    with pytest.raises(FrameError, match="an array is null that must not be"):
        decode(FetchResponse, bytes(10) + b"\x00\x00")
    with pytest.raises(FrameError, match="an array is null that must not be"):
        decode(LegacyFetchResponse, bytes(4) + struct.pack(">i", -1))
    partition = decode(PartitionData, _PARTITION.replace(b"\x01", b"\x01\x00"))
    assert partition.aborted_transactions is None


def test_a_reader_that_stops_at_another_position_is_rejected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An unknown defect could make kio read other bytes than the verified ones."""
    body = encode(decode(FetchResponse, bytes(10) + b"\x01\x00"))
    monkeypatch.setattr(
        "tidemark.wire.framing.reader_of", lambda _: lambda *_: (None, len(body) - 1)
    )
    with pytest.raises(FrameError, match="12 bytes by its lengths and 11 by its fields"):
        decode(FetchResponse, body)


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


def test_every_message_is_verified_before_it_is_read() -> None:
    """kio's readers of requests and responses are called in one module only."""
    sources = [
        path.relative_to(ROOT).as_posix()
        for room in ("tidemark", "operator", "broker_image", "pipeline", "cli")
        for path in (ROOT / room).rglob("*.py")
        if re.search(r"entity_reader|get_reader|kio_native|serial.readers", path.read_text("utf-8"))
    ]
    assert sorted(sources) == ["tidemark/wire/framing.py", "tidemark/wire/tolerant_reader.py"]
