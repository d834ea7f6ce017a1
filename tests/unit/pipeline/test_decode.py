"""Record batches become Arrow rows: one for each selected data record, byte for byte."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.records.builder import Record, build_batch
from tidemark.records.decode import decode_records
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read import decode as decoder
from tidemark_pipeline.read import scan
from tidemark_pipeline.read.decode import ByteSource, DecodeThreads, decode

EVERYTHING = ByteSource("t", 3, "remote", 0, 2**62)
_bytes = st.none() | st.binary(max_size=40)
_headers = st.lists(st.tuples(st.text(max_size=8), _bytes), max_size=3)
_records = st.lists(
    st.builds(
        Record,
        key=_bytes,
        value=_bytes,
        headers=_headers.map(tuple),
        timestamp_ms=st.integers(0, 2**41),
    ),
    min_size=1,
    max_size=20,
)


def rows(data: bytes, source: ByteSource = EVERYTHING) -> list[dict[str, Any]]:
    return [row for batch in decode(data, source) for row in batch.to_pylist()]


@given(records=_records, codec=st.integers(0, 4), base_offset=st.integers(0, 2**40))
def test_every_record_is_decoded(records: list[Record], codec: int, base_offset: int) -> None:
    data = build_batch(records, base_offset=base_offset, codec=codec)
    got = rows(data)
    expected = list(decode_records(data))
    assert [row["key"] for row in got] == [record.key for record in records]
    assert [row["value"] for row in got] == [record.value for record in records]
    assert [row["offset"] for row in got] == [record.offset for record in expected]
    for row, record in zip(got, records, strict=True):
        headers = row["headers"] or []
        assert [(h["key"], h["value"]) for h in headers] == list(record.headers)
        assert int(row["timestamp"].timestamp() * 1000 + 0.5) == record.timestamp_ms
        assert (row["topic"], row["partition"], row["tier"]) == ("t", 3, "remote")


def test_only_selected_offsets_are_decoded() -> None:
    records = [
        Record(key=None, value=str(i).encode(), headers=(), timestamp_ms=i) for i in range(10)
    ]
    data = b"".join(build_batch(records, base_offset=base) for base in (0, 10, 20))
    # The range starts and ends within a batch.
    got = rows(data, ByteSource("t", 0, "local", 7, 21))
    assert [row["offset"] for row in got] == list(range(7, 22))


def test_flipped_bit_is_reported_with_its_place() -> None:
    data = bytearray(build_batch([Record(b"k", b"value", (), 5)], base_offset=42))
    data[-3] ^= 0x10
    with pytest.raises(CorruptData, match=r"t-3, offsets 42 to 42 \(remote\)"):
        rows(bytes(data))


def test_partial_batch_at_the_end_is_ignored() -> None:
    one = build_batch([Record(b"k", b"v", (), 5)], base_offset=0)
    data = one + build_batch([Record(b"k", b"v", (), 5)], base_offset=1)[:-1]
    assert len(rows(data)) == 1


@pytest.mark.parametrize("codec", range(5))
def test_many_batches_become_one_arrow_batch(codec: int) -> None:
    """Producers send small batches, some of which are not compressed."""
    records = [Record(None, b"%06d" % n, (), n) for n in range(9)]
    data = b"".join(
        build_batch(
            records[: 1 + n % 9],
            base_offset=10 * n,
            leader_epoch=n % 4,
            codec=codec if n % 3 else 0,
        )
        for n in range(300)
    )
    # Several threads must not change the order of the rows.
    with DecodeThreads(3) as threads:
        side_by_side = list(decode(data, EVERYTHING, threads=threads))
    (one_by_one,) = decode(data, EVERYTHING)
    assert side_by_side == [one_by_one]
    assert one_by_one.num_rows == sum(1 + n % 9 for n in range(300))
    last = one_by_one.slice(one_by_one.num_rows - 3).to_pylist()
    assert [(row["offset"], row["value"], row["leaderEpoch"]) for row in last] == [
        (2990, b"000000", 3), (2991, b"000001", 3), (2992, b"000002", 3)
    ]  # fmt: skip


def test_arrow_batches_are_limited_by_unpacked_bytes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoder, "UNPACKED_BYTES_MAX", 1000)
    data = b"".join(
        build_batch([Record(None, bytes(300), (), 0)], base_offset=n, codec=4) for n in range(7)
    )
    # Three values of 300 bytes fit into 1,000 bytes.
    assert [batch.num_rows for batch in decode(data, EVERYTHING)] == [3, 3, 1]


@pytest.mark.parametrize("codec", range(1, 5))
def test_batches_that_fill_a_buffer_keep_their_order(codec: int) -> None:
    """Values that compress well need more memory than the decoder reserves for them."""
    sizes = [10, 300_000, 200_000, 0, 5, 900_000, 7, 400_000]
    data = b"".join(
        build_batch([Record(None, bytes(size), (), 0)], base_offset=n, codec=codec)
        for n, size in enumerate(sizes)
    )
    with DecodeThreads(3) as threads:
        found = [
            (row["offset"], len(row["value"]))
            for item in decode(data, EVERYTHING, threads=threads)
            for row in item.to_pylist()
        ]
    assert found == list(enumerate(sizes))


def test_all_codecs_use_the_same_compiled_code() -> None:
    """Each kind of argument would be compiled, or loaded, in every worker."""
    for codec in range(5):
        rows(build_batch([Record(b"k", b"v", (), 5)], base_offset=0, codec=codec))
    assert len(scan.scan_batches.signatures) == 1
