"""Unknown tagged fields are skipped (KIP-482)."""

import struct

import pytest
from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.fetch.v12.response import FetchResponse
from kio.schema.metadata.v12.request import MetadataRequest

from tidemark.wire.framing import FrameError, decode, encode


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


def test_a_known_tag_is_read_and_an_unknown_one_is_not_written() -> None:
    body = (
        struct.pack(">ihi", 0, 0, 0)
        + b"\x02\x02t\x02"  # one topic "t", one partition
        + struct.pack(">ihqqq", 3, 0, 10, 10, 0)
        + b"\x00"  # aborted transactions: null
        + struct.pack(">i", -1)
        + b"\x04abc"
    )
    # Tag 0 is the diverging epoch, of 13 bytes.
    known = b"\x00\x0d" + struct.pack(">iq", 7, 42) + b"\x00"
    read = decode(FetchResponse, body + b"\x02" + known + b"\x09\x01a" + b"\x00\x00")
    assert encode(read) == body + b"\x01" + known + b"\x00\x00"
    assert read.responses[0].partitions[0].diverging_epoch.end_offset == 42
