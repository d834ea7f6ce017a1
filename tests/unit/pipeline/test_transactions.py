"""Tables contain what a read_committed consumer reads: no aborted records, no markers."""

from collections.abc import Sequence

from tests.unit.pipeline.small_tier import SmallTier
from tests.unit.pipeline.test_segment_reader import read
from tidemark.logfiles.transaction_index import AbortedTxn
from tidemark.records.batch import restamp
from tidemark.records.builder import Record, build_batch
from tidemark.records.control import EndMarker, build_end_marker
from tidemark_pipeline.read.decode import ByteSource, decode


def data(offset: int, producer: int = -1) -> bytes:
    """Return a batch, of a transaction if it has a producer."""
    return build_batch(
        [Record(b"k", b"%d" % offset, (), offset)],
        base_offset=offset,
        leader_epoch=1,
        producer_id=producer,
        producer_epoch=0,
        base_sequence=offset,
        is_transactional=producer >= 0,
    )


def marker(offset: int, producer: int, *, commit: bool) -> bytes:
    made = bytearray(
        build_end_marker(
            EndMarker(commit, 0), producer_id=producer, producer_epoch=0, timestamp_ms=offset
        )
    )
    restamp(made, 0, offset, 1)
    return bytes(made)


#: Producer 1 aborts, 2 commits, then 1 commits; 3 aborts behind the end.
LOG = [
    data(0), data(1, 1), data(2, 2), data(3, 1), marker(4, 1, commit=False), data(5, 2),
    marker(6, 2, commit=True), data(7, 1), data(8, 3), marker(9, 1, commit=True),
]  # fmt: skip
ABORTED = (AbortedTxn(1, 1, 4, 2), AbortedTxn(3, 8, 12, 13))
READ = [0, 2, 5, 7]


def rows(batches: Sequence[bytes], aborted: Sequence[tuple[int, int]], first: int = 0) -> list[int]:
    source = ByteSource("t", 0, "local", first, 100)
    found = decode(b"".join(batches), source, aborted)
    return [offset for batch in found for offset in batch.column("offset").to_pylist()]


def test_segments_of_the_tier_are_read_without_aborted_records(small_tier: SmallTier) -> None:
    small_tier.copy([b""] * len(LOG), batches=LOG, aborted=ABORTED)
    assert [offset for offset, _ in read(small_tier)] == READ


def test_a_transaction_that_began_in_another_segment_is_left_out(small_tier: SmallTier) -> None:
    # The transaction of producer 1 begins in the first segment and ends in the second.
    small_tier.copy([b""] * 3, batches=LOG[:3], aborted=ABORTED[:1])
    small_tier.copy([b""] * 7, batches=LOG[3:], aborted=ABORTED)
    assert [offset for offset, _ in read(small_tier)] == READ


def test_the_tail_is_read_without_aborted_records() -> None:
    aborted = [(item.producer_id, item.first_offset) for item in reversed(ABORTED)]
    assert rows(LOG, aborted) == READ
    # The read starts within both transactions.
    assert rows(LOG[3:], aborted, first=3) == [5, 7]
    assert rows(LOG, aborted, first=3) == [5, 7]


def test_without_aborted_transactions_only_markers_are_left_out() -> None:
    assert rows(LOG, ()) == [0, 1, 2, 3, 5, 7, 8]
