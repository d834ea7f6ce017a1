"""Unknown tagged fields are skipped (KIP-482)."""

import struct

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.metadata.v12.request import MetadataRequest

from tidemark.wire.framing import FrameError, decode, encode
from tidemark.wire.tolerant_reader import read_entity


def test_an_unknown_tag_is_skipped() -> None:
    read = decode(ApiVersionsRequest, b"\x02a\x02b\x01\x05\x02xx")
    assert (read.client_software_name, read.client_software_version) == ("a", "b")


def test_unknown_tags_of_nested_entities_are_skipped() -> None:
    # one topic "t" (with tag 9 of three bytes), no auto creation
    topic = b"\x00" * 16 + b"\x02t" + b"\x01\x09\x03abc"
    read = decode(MetadataRequest, b"\x02" + topic + b"\x00\x00\x01\x90\x4e\x01z")
    assert read.topics is not None
    assert [topic.name for topic in read.topics] == ["t"]


def test_a_tag_beyond_the_end_of_the_message_is_rejected() -> None:
    with pytest.raises(FrameError, match="bytes are missing"):
        decode(ApiVersionsRequest, b"\x02a\x02b\x01\x05\x7fxx")


def test_the_tolerant_reader_agrees_with_kio() -> None:
    body = (
        struct.pack(">ihi", 0, 0, 0)
        + b"\x02\x02t\x02"  # one topic "t", one partition
        + struct.pack(">ihqqq", 3, 0, 10, 10, 0)
        + b"\x00"  # aborted transactions: null
        + struct.pack(">i", -1)
        + b"\x04abc"
        + b"\x01\x00\x0d"  # one tag, diverging epoch, 13 bytes
        + struct.pack(">iq", 7, 42)
        + b"\x00"
        + b"\x00\x00"
    )
    expected = decode(FetchResponse, body)
    # The native reader and the fallback must return the same entity for a message that both know.
    read, size = read_entity(FetchResponse, body, 0)
    assert read == expected
    assert size == len(body)
    assert encode(read) == body
    assert read.responses[0].partitions[0].diverging_epoch.end_offset == 42
