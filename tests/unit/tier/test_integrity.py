"""A segment's object is used completely as it was copied, or not at all."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.records.batch import (
    BatchHeader,
    iter_headers,
    restamp,
)
from tidemark.records.builder import Record, build_batch
from tidemark.records.split_bytes import SplitBytes
from tidemark.tier.metadata.segment import DigestAlgorithm, Digests, SegmentEntry
from tidemark.tier.segments import integrity
from tidemark.tier.segments.integrity import (
    BatchLine,
    CheckedStream,
    LogDigest,
    ObjectDamaged,
    digest_of,
    list_batches,
    log_digest,
    verified_batches,
)

PIECE = 16
BLAKE3 = DigestAlgorithm.BLAKE3


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "PIECE_BYTES", PIECE)


def pieces_of(data: bytes, *sizes: int, algorithm: DigestAlgorithm = BLAKE3) -> tuple[bytes, ...]:
    digest, begin = LogDigest(algorithm), 0
    for size in (*sizes, len(data)):
        digest.update(data[begin : begin + size])
        begin += size
    return digest.finish()


@given(
    data=st.binary(max_size=100),
    sizes=st.lists(st.integers(0, 40), max_size=6),
    algorithm=st.sampled_from(DigestAlgorithm),
)
@pytest.mark.usefixtures("small_pieces")
def test_digests_do_not_depend_on_the_parts(
    data: bytes, sizes: list[int], algorithm: DigestAlgorithm
) -> None:
    pieces = pieces_of(data, *sizes, algorithm=algorithm)
    assert pieces == tuple(
        digest_of(data[at : at + PIECE], algorithm) for at in range(0, len(data), PIECE)
    )
    assert integrity.split_pieces(b"".join(pieces)) == pieces
    assert integrity.wrong_piece(data, 0, pieces, algorithm) is None
    # The digests of one algorithm never verify as those of another one.
    for other in set(DigestAlgorithm) - {algorithm}:
        assert integrity.wrong_piece(data, 0, pieces, other) == (0 if data else None)


@pytest.mark.parametrize(
    ("algorithm", "digest"),
    [
        # Of NIST's FIPS 180 example, and of the test vectors of the BLAKE3 specification.
        (
            DigestAlgorithm.SHA256,
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        ),
        (
            DigestAlgorithm.BLAKE3,
            "6437b3ac38465133ffb63b75273a8db548c558465d79db03fd359c6cd5bd9d85",
        ),
    ],
)
def test_digests_are_those_of_the_published_algorithms(
    algorithm: DigestAlgorithm, digest: str
) -> None:
    assert digest_of(b"abc", algorithm).hex() == digest


def test_an_unknown_algorithm_is_named() -> None:
    with pytest.raises(ValueError, match=r"algorithm 'md5', known are sha256, blake3"):
        DigestAlgorithm.of_name("md5")


def test_digests_of_a_wrong_length_are_rejected() -> None:
    with pytest.raises(ValueError, match="33 bytes are no digests of 32"):
        integrity.split_pieces(bytes(33))


@pytest.mark.usefixtures("small_pieces")
class TestCheckedStream:
    DATA = bytes(range(50))

    def stream(self, place: Any, *, known: bool = True) -> CheckedStream:
        pieces = pieces_of(self.DATA)
        entry = place.segment(0, 9, size_bytes=len(self.DATA))
        if known:
            entry = replace(entry, digests=Digests(BLAKE3, log_digest(pieces, BLAKE3), b""))
        return CheckedStream(entry, pieces if known else (), "memory")

    @pytest.mark.parametrize("size", [1, 7, 16, 33, 50, 99])
    def test_bytes_are_released_once_their_piece_is_verified(self, place: Any, size: int) -> None:
        stream, out = self.stream(place), b""
        for begin in range(0, 50, size):
            out += stream.feed(self.DATA[begin : begin + size])
            # Only complete pieces are released, and at the end the rest.
            assert len(out) in (len(out) // PIECE * PIECE, 50)
        stream.finish()
        assert out == self.DATA

    @pytest.mark.parametrize("at", [0, 15, 16, 40, 49])
    def test_no_byte_of_a_damaged_piece_is_released(self, place: Any, at: int) -> None:
        wrong = bytearray(self.DATA)
        wrong[at] ^= 1
        stream, out = self.stream(place), b""
        begun = at // PIECE * PIECE
        # All pieces before the damaged one are released.
        for begin in range(0, begun, PIECE):
            out += stream.feed(bytes(wrong[begin : begin + PIECE]))
        assert out == self.DATA[:begun]
        with pytest.raises(ObjectDamaged, match=rf"digest differs at byte {begun}\."):
            stream.feed(bytes(wrong[begun:]))

    def test_a_log_of_another_length_is_rejected(self, place: Any) -> None:
        for known in (True, False):
            stream = self.stream(place, known=known)
            stream.feed(self.DATA[:-1])
            with pytest.raises(ObjectDamaged, match="it has 49 bytes, the manifest says 50"):
                stream.finish()

    def test_digests_of_another_logs_pieces_are_rejected(self, place: Any) -> None:
        digests = Digests(BLAKE3, log_digest(pieces_of(self.DATA), BLAKE3), b"")
        entry = replace(place.segment(0, 9, size_bytes=50), digests=digests)
        for other in ((), pieces_of(self.DATA[:48]), pieces_of(b"another")):
            with pytest.raises(ObjectDamaged, match=r"\.aux in memory .* are not the manifest's"):
                CheckedStream(entry, other, "memory")


def log_of(*batches: tuple[int, int]) -> bytearray:
    """Return batches of (base offset, records) in leader epoch 1."""
    return bytearray().join(
        build_batch(
            [Record(None, b"v", (), base + n) for n in range(count)],
            base_offset=base,
            leader_epoch=1,
        )
        for base, count in batches
    )


Walk = Callable[[SegmentEntry, bytes], None]


def walk(entry: SegmentEntry, data: bytes) -> None:
    """Read and verify the complete object."""
    line = BatchLine(entry, "memory")
    for position, header in iter_headers(data):
        line.follow(header.base_offset, header.last_offset, position, header.size_bytes)
        line.check_batch(data, position)
    line.finish()


def walk_at_once(entry: SegmentEntry, data: bytes) -> None:
    """Verify all batches of the object but its first by one call, as a broker does."""
    line, (_, first) = BatchLine(entry, "memory"), next(iter_headers(data))
    line.follow(first.base_offset, first.last_offset, 0, first.size_bytes)
    # Chunks of a broker end anywhere, also within a header.
    chunks = [bytes(data[begin : begin + 50]) for begin in range(0, len(data), 50)]
    line.check_batches(SplitBytes(chunks, 0, len(data)), 0)
    line.finish()


@pytest.mark.parametrize("walk", [walk, walk_at_once])
class TestBatchLine:
    BATCHES = ((10, 3), (13, 1), (14, 6))

    def entry(self, place: Any, *, known: bool = True) -> SegmentEntry:
        entry = place.segment(10, 19, size_bytes=len(log_of(*self.BATCHES)))
        return replace(entry, digests=Digests(BLAKE3, b"", b"")) if known else entry

    def test_an_unchanged_object_is_accepted(self, place: Any, walk: Walk) -> None:
        for known in (True, False):
            walk(self.entry(place, known=known), log_of(*self.BATCHES))

    def test_a_trimmed_segment_is_verified_as_it_was_copied(self, place: Any, walk: Walk) -> None:
        walk(replace(self.entry(place), from_offset=15), log_of(*self.BATCHES))

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda log, at: restamp(log, at[1], 12, 1), "begins with offset 12, not with 13"),
            (lambda log, at: restamp(log, at[0], 0, 1), "begins with offset 0, not with 10"),
            (lambda log, at: restamp(log, at[2], 15, 1), "begins with offset 15, not with 14"),
            (lambda log, at: log.__delitem__(slice(at[2], None)), "ends with offset 13, and the"),
            (lambda log, at: log.__delitem__(-1), "its batches end before offset 14"),
            (lambda log, at: log.extend(log_of((20, 1))), "ends with offset 19, and the segment"),
            (lambda log, at: log.__setitem__(at[2] - 1, 0xFF), "CRC of the batch at offset 13"),
        ],
    )
    @pytest.mark.parametrize("known", [True, False])
    def test_a_changed_object_is_rejected(
        self,
        place: Any,
        walk: Walk,
        known: bool,
        change: Callable[[bytearray, list[int]], None],
        message: str,
    ) -> None:
        log = log_of(*self.BATCHES)
        change(log, [position for position, _ in iter_headers(log)])
        entry = replace(self.entry(place, known=known), size_bytes=len(log))
        with pytest.raises(ObjectDamaged, match=message) as caught:
            walk(entry, log)
        # The message names the object, the store, and the command that removes the lost records.
        for fragment in (entry.log_key, "in memory", "RecordDeletion before offset 20"):
            assert fragment in str(caught.value)

    def test_an_unknown_leader_epoch_is_rejected(self, place: Any, walk: Walk) -> None:
        log = log_of(*self.BATCHES)
        position = [position for position, _ in iter_headers(log)][1]
        restamp(log, position, 13, 2)
        with pytest.raises(ObjectDamaged, match="of leader epoch 2, the manifest names 1"):
            walk(self.entry(place), log)
        # Entries of the first format have no digests, and their epochs were not checked.
        walk(self.entry(place, known=False), log)


def parts_of(log: bytes, size: int) -> list[bytes]:
    return [log[begin : begin + size] for begin in range(0, len(log), size)]


def test_parts_of_a_large_batch_are_joined_once(place: Any) -> None:
    value = bytes(100_000)
    large = build_batch([Record(None, value, (), 10)], base_offset=10, leader_epoch=1)
    log = large + bytes(log_of((11, 3), (14, 6)))
    entry = place.segment(10, 19, size_bytes=len(log))
    joined = []

    def counted(data: bytes) -> tuple[list[tuple[int, BatchHeader]], int]:
        joined.append(len(data))
        return list_batches(data)

    parts = parts_of(log, 100)
    found = [
        (position + at, header.base_offset)
        for position, _, headers in verified_batches(entry, parts, (), "memory", counted)
        for at, header in headers
    ]
    assert found == [(position, header.base_offset) for position, header in iter_headers(log)]
    # The first part shows the size of the batch, and the whole batch is joined when it is there.
    assert sum(joined) < 2 * len(log)


@pytest.mark.parametrize("cut_bytes", [1, 70])
def test_a_batch_that_the_data_cuts_is_left_out(place: Any, cut_bytes: int) -> None:
    log = bytes(log_of((10, 3), (13, 1), (14, 6)))
    entry = place.segment(10, 19, size_bytes=len(log))
    positions = [*(position for position, _ in iter_headers(log)), len(log)]
    line = BatchLine(entry, "memory", 13)
    line.follow(13, 13, positions[1], positions[2] - positions[1])
    cut = SplitBytes([log], positions[1], len(log) - cut_bytes)
    size = line.check_batches(cut, positions[1])
    assert (size, line.expected) == (positions[2] - positions[1], 14)
