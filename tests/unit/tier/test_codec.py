"""JSON of heads, pages and topic objects: round trips, and rejection of anything unknown."""

import base64
import json
import uuid
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.ids import id_text, parse_id
from tidemark.tier.metadata.codec import (
    FORMAT_VERSION,
    ManifestCorrupt,
    decode_head,
    decode_page,
    encode_head,
    encode_page,
)
from tidemark.tier.metadata.head import PAGE_ENTRIES, ManifestPage, Mark, PageRef
from tidemark.tier.metadata.layout import (
    head_key,
    partition_of_head,
    segment_key,
    topic_data_prefix,
)
from tidemark.tier.metadata.segment import DigestAlgorithm, Digests, SegmentState
from tidemark.tiering import DisablePolicy, Tiering, TieringState


def reference(number: int) -> PageRef:
    return PageRef(
        name=f"{number:08d}-{'x' * 22}",
        count=PAGE_ENTRIES,
        start_offset=number * 10**9,
        first_end_offset_inclusive=number * 10**9 + 10**6,
        end_offset_inclusive=(number + 1) * 10**9 - 1,
        end_leader_epoch=1000,
        size_bytes=2**38,
        min_tiered_epoch=3,
        max_tiered_epoch=3,
        max_timestamp_ms=1_790_000_000_000,
    )


def test_a_full_head_round_trips(place: Any) -> None:
    # Every optional field has a value that differs from its default.
    entry = replace(
        place.segment(5, 9, epochs=((1, 2), (4, 8))),
        from_offset=7,
        state=SegmentState.DELETE_STARTED,
        marked_at_ms=77,
        custom_metadata=bytes(range(256)),
        digests=Digests(DigestAlgorithm.BLAKE3, bytes(range(32)), bytes(range(200, 232))),
    )
    ref = replace(reference(1), gone=0b1011, gone_bytes=3)
    head = replace(
        place.head(),
        version=9,
        commit_id="abc",
        tiering=Tiering(TieringState.DISABLING, 2, DisablePolicy.DELETE),
        entries=(entry, place.segment(10, 10)),
        pages=(ref,),
        marks=(Mark(1, 2, 3),),
        trash=("p",),
        next_page=4,
        deleted_at_ms=5,
    )
    assert decode_head(encode_head(head), "head") == head
    page = ManifestPage("p", place.topic, place.topic_id, place.partition, (entry,))
    assert decode_page(encode_page(page), "page") == page


#: A head and a page as the first format wrote them.
FIRST_HEAD = (
    b'{"formatVersion":1,"topic":"flights","topicId":"b5YZ_4uGTRG0LQDAT8lk_w","partition":3,'
    b'"clusterId":"cluster-1","version":7,"commitId":"abc","leaderEpoch":1,"tieredEpoch":0,'
    b'"brokerId":1,"state":"ENABLED","policy":null,"logStartOffset":0,"floorEpoch":0,'
    b'"lineStartOffset":0,"nextPage":1,"marks":[],'
    b'"pages":[["p",2,0,4,9,1,200,0,0,100,"0",0]],'
    b'"entries":[{"segmentId":"AAAAAAAAAAAAAAAAAAAAAQ","startOffset":10,"endOffset":19,'
    b'"maxTimestampMs":100,"sizeBytes":100,"brokerId":1,"eventTimeMs":5,"leaderEpochs":[[1,0]],'
    b'"leaderEpoch":1,"tieredEpoch":0,"customMetadata":"eyJuIjoxMjN9"}],'
    b'"trash":[],"deletedAtMs":null}'
)
FIRST_PAGE = (
    b'{"formatVersion":1,"name":"p","topic":"flights","topicId":"b5YZ_4uGTRG0LQDAT8lk_w",'
    b'"partition":3,"entries":[{"segmentId":"AAAAAAAAAAAAAAAAAAAAAg","startOffset":0,"endOffset":4,'
    b'"maxTimestampMs":100,"sizeBytes":100,"brokerId":1,"eventTimeMs":5,"leaderEpochs":[[1,0]],'
    b'"leaderEpoch":1,"tieredEpoch":0}]}'
)


def test_the_first_format_is_read_and_the_newest_written() -> None:
    head, page = decode_head(FIRST_HEAD, "head"), decode_page(FIRST_PAGE, "page")
    assert (head.version, head.pages[0].count, page.entries[0].digests) == (7, 2, None)
    (entry,) = head.entries
    assert (entry.end_offset_inclusive, entry.custom_metadata) == (19, b'{"n":123}')
    assert entry.digests is None
    # Only the version number changes: a head without digests stays without.
    for old, new in ((FIRST_HEAD, encode_head(head)), (FIRST_PAGE, encode_page(page))):
        assert json.loads(new) == {**json.loads(old), "formatVersion": FORMAT_VERSION}
    assert decode_head(encode_head(head), "head") == head


def test_an_unknown_digest_algorithm_is_named(place: Any) -> None:
    entry = replace(
        place.segment(0, 9), digests=Digests(DigestAlgorithm.BLAKE3, b"l" * 32, b"a" * 32)
    )
    data = encode_head(replace(place.head(), entries=(entry,)))
    with pytest.raises(ManifestCorrupt, match=r"'sha512', known are sha256, blake3\); if a newer"):
        decode_head(data.replace(b"blake3:", b"sha512:"), "the head of t-0")


@given(data=st.none() | st.binary(max_size=200))
def test_custom_metadata_round_trips(place: Any, data: bytes | None) -> None:
    head = replace(place.head(), entries=(replace(place.segment(0, 9), custom_metadata=data),))
    (entry,) = decode_head(encode_head(head), "head").entries
    assert entry.custom_metadata == data


def test_unknown_and_invalid_manifests_are_rejected(place: Any) -> None:
    good = json.loads(encode_head(replace(place.head(), entries=(place.segment(0, 9),))))
    joined = base64.b64encode(bytes(64)).decode()
    bad: list[bytes] = [b"", b"[]", b"{}", b"\xff"]
    # Other versions, unknown fields, wrong types, and values out of range.
    changes: tuple[dict[str, object], ...] = (
        {"formatVersion": 0},
        {"formatVersion": FORMAT_VERSION + 1},
        {"surprise": 1},
        {"version": "1"},
        {"version": True},
        {"topicId": "short"},
        {"state": "SLEEPING"},
        {"entries": [{**good["entries"][0], "surprise": 1}]},
        {"entries": [{**good["entries"][0], "leaderEpochs": []}]},
        {"entries": [{**good["entries"][0], "endOffset": -1}]},
        {"entries": [{**good["entries"][0], "digests": "AAAA"}]},
        {"entries": [{**good["entries"][0], "digests": "?"}]},
        # The first format has no digests, the second no names of algorithms, the third both.
        {"formatVersion": 1, "entries": [{**good["entries"][0], "digests": "AA" * 44}]},
        {"formatVersion": 2, "entries": [{**good["entries"][0], "digests": f"blake3:{joined}"}]},
        {"entries": [{**good["entries"][0], "digests": joined}]},
        {"entries": [{**good["entries"][0], "digests": f"sha512:{joined}"}]},
        {"pages": [["x"]]},
        {"marks": [[1, 2]]},
    )
    bad += [json.dumps({**good, **change}).encode() for change in changes]
    for data in bad:
        with pytest.raises(ManifestCorrupt, match=r"the head of t-0 is no manifest .* upgrade"):
            decode_head(data, "the head of t-0")
    with pytest.raises(ManifestCorrupt):
        decode_page(b"{}", "page")


def test_the_head_of_a_hundred_thousand_segments_stays_small(place: Any) -> None:
    """A copy writes the head twice, for any length of the log."""
    # One full page in the head, and all other segments in pages.
    entries = tuple(
        replace(
            place.segment(10**11 + n, 10**11 + n, epochs=((1000, 10**11),)),
            state=SegmentState.COPY_FINISHED,
            custom_metadata=b'{"b":"tier-bucket-one","n":1073741824}',
            digests=Digests(DigestAlgorithm.BLAKE3, b"\x01" * 32, b"\x02" * 32),
        )
        for n in range(PAGE_ENTRIES)
    )
    pages = tuple(reference(n) for n in range(100_000 // PAGE_ENTRIES))
    assert len(encode_head(replace(place.head(), entries=entries, pages=pages))) < 190_000


def test_keys_follow_the_documented_layout() -> None:
    topic_id, segment_id = uuid.UUID(int=0), uuid.UUID(int=2**128 - 1)
    zeros, ones = "A" * 22, "_" * 21 + "w"
    assert segment_key("t.x", topic_id, 4, 17, segment_id) == (
        f"data/t.x-{zeros}/4/00000000000000000017-{ones}"
    )
    assert topic_data_prefix("t.x", topic_id) == f"data/t.x-{zeros}/"
    assert partition_of_head(head_key(topic_id, 12)) == 12


@given(st.uuids())
def test_ids_round_trip(value: uuid.UUID) -> None:
    assert parse_id(id_text(value)) == value


@pytest.mark.parametrize("text", ["", "AAAA", "A" * 23, "!" * 22, "A" * 21 + "\n"])
def test_other_texts_are_not_ids(text: str) -> None:
    with pytest.raises(ValueError, match="22 base64url"):
        parse_id(text)


NOT_INT64 = (2**63, -(2**63) - 1, 10**30)


@pytest.mark.parametrize("number", NOT_INT64)
def test_numbers_above_64_bits_are_rejected(place: Any, number: int) -> None:
    """Such a number would break code that forwards it, such as the status or a response to a
    follower."""
    head = json.loads(encode_head(replace(place.head(), entries=(place.segment(10, 19),))))
    for name in ("logStartOffset", "leaderEpoch", "version"):
        with pytest.raises(ManifestCorrupt, match=r"heads/x .*64 bits"):
            decode_head(json.dumps({**head, name: number}).encode(), "heads/x")
    for name in ("endOffset", "sizeBytes", "maxTimestampMs"):
        entry = {**head["entries"][0], name: number}
        with pytest.raises(ManifestCorrupt, match="heads/x"):
            decode_head(json.dumps({**head, "entries": [entry]}).encode(), "heads/x")


@pytest.mark.parametrize("size", [-1, 0, 2**31])
def test_a_segment_size_must_be_a_valid_log_size(place: Any, size: int) -> None:
    head = json.loads(encode_head(replace(place.head(), entries=(place.segment(10, 19),))))
    head["entries"][0]["sizeBytes"] = size
    with pytest.raises(ManifestCorrupt, match=f"heads/x .*{size} bytes"):
        decode_head(json.dumps(head).encode(), "heads/x")


def test_deeply_nested_input_is_rejected() -> None:
    """The decoder's RecursionError must not escape."""
    # 100,000 levels exceed Python's recursion limit many times.
    for decode in (decode_head, decode_page):
        with pytest.raises(ManifestCorrupt, match="heads/x"):
            decode(b"[" * 100_000, "heads/x")
