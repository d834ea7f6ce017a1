"""Copied segment as the manifest records it (Kafka's RemoteLogSegmentMetadata).

Fields are Kafka's, with ``tieredEpoch`` (KIP-950) and ``customMetadata`` (KIP-917). In addition to
the range of the uploaded file, an entry has the range that it *answers for*. After a leader change
a segment may begin below the end of the one before it, with equal bytes, and then answers only from
behind that end (invariant 5). Only the beginning is ever trimmed, so ``from_offset`` is enough.
"""

import enum
import itertools
import uuid
from collections.abc import Iterable
from dataclasses import dataclass

from tidemark.tier.metadata.layout import AUX_SUFFIX, LOG_SUFFIX, segment_key


class SegmentState(enum.IntEnum):
    """States of Kafka's RemoteLogSegmentState, with its numbers."""

    COPY_STARTED = 0
    COPY_FINISHED = 1
    DELETE_STARTED = 2
    DELETE_FINISHED = 3


class DigestAlgorithm(enum.StrEnum):
    """Algorithms of a segment's digests (``integrity``), by their names in stored objects.

    Each yields 32 bytes. An algorithm stays here for as long as a segment may have its digests.
    """

    SHA256 = "sha256"
    BLAKE3 = "blake3"

    @classmethod
    def of_name(cls, name: str) -> "DigestAlgorithm":
        """Return the algorithm of a name. Raises ValueError for an unknown one."""
        try:
            return cls(name)
        except ValueError:
            known = ", ".join(cls)
            raise ValueError(f"digests of algorithm {name[:20]!r}, known are {known}") from None


@dataclass(frozen=True, slots=True)
class Digests:
    """Digests of a segment's two objects (``integrity``), both of one algorithm."""

    algorithm: DigestAlgorithm
    log: bytes
    aux: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentEntry:
    """Entry of a manifest.

    ``state``: as written last; the head's overlay decides (``queries.state_of``).
    ``leader_epochs``: (epoch, first offset) ascending, the first not above ``start_offset``.
    ``size_bytes``: of the log file, without indexes. ``leader_epoch``, ``broker_id``: of the
    copier. ``event_time_ms``: start of the copy. ``marked_at_ms``: when a copy was given up.
    ``key``: of both objects, without suffix. ``digests``: set once the copy is finished; None for
    entries of the manifest's first format.
    """

    segment_id: uuid.UUID
    start_offset: int
    end_offset_inclusive: int
    from_offset: int
    max_timestamp_ms: int
    size_bytes: int
    broker_id: int
    event_time_ms: int
    leader_epochs: tuple[tuple[int, int], ...]
    leader_epoch: int
    tiered_epoch: int
    key: str
    state: SegmentState = SegmentState.COPY_STARTED
    custom_metadata: bytes | None = None
    marked_at_ms: int | None = None
    digests: Digests | None = None

    @property
    def log_key(self) -> str:
        """Key of the segment's bytes."""
        return self.key + LOG_SUFFIX

    @property
    def aux_key(self) -> str:
        """Key of its indexes, epochs, producer snapshot and aborted ranges."""
        return self.key + AUX_SUFFIX

    @property
    def end_leader_epoch(self) -> int:
        """Leader epoch of the segment's last record."""
        return self.leader_epochs[-1][0]

    def epoch_at(self, offset: int) -> int:
        """Return the leader epoch under which an offset of this segment was written."""
        # The first epoch may begin below the segment: it covers the start in any case.
        epoch = self.leader_epochs[0][0]
        for candidate, start in self.leader_epochs:
            if start > offset:
                break
            epoch = candidate
        return epoch


def new_segment(
    *,
    topic: str,
    topic_id: uuid.UUID,
    partition: int,
    segment_id: uuid.UUID,
    start_offset: int,
    end_offset_inclusive: int,
    max_timestamp_ms: int,
    size_bytes: int,
    broker_id: int,
    event_time_ms: int,
    leader_epochs: Iterable[tuple[int, int]],
    leader_epoch: int,
    tiered_epoch: int,
) -> SegmentEntry:
    """Return the manifest entry of a copy that is about to start (COPY_STARTED).

    ``segment_id`` is new for every attempt, also at the same offsets: a copy that was given up must
    never be confused with a later one. ``leader_epochs``: (epoch, start offset) pairs of the
    segment. ``leader_epoch`` and ``tiered_epoch``: those of the copying leader. Raises ValueError
    for invalid ranges.
    """
    # Checked before the upload, because an entry with wrong ranges would be refused after it.
    epochs = tuple((int(epoch), int(start)) for epoch, start in leader_epochs)
    check_range(start_offset, end_offset_inclusive, epochs)
    return SegmentEntry(
        segment_id=segment_id,
        start_offset=start_offset,
        end_offset_inclusive=end_offset_inclusive,
        # Provisional: ``transitions.finish_copy`` determines the first offset that it serves.
        from_offset=start_offset,
        max_timestamp_ms=max_timestamp_ms,
        size_bytes=size_bytes,
        broker_id=broker_id,
        event_time_ms=event_time_ms,
        leader_epochs=epochs,
        leader_epoch=leader_epoch,
        tiered_epoch=tiered_epoch,
        key=segment_key(topic, topic_id, partition, start_offset, segment_id),
    )


def check_range(start: int, end_inclusive: int, epochs: tuple[tuple[int, int], ...]) -> None:
    """Raise ValueError if offsets or leader epochs cannot be those of a segment."""
    if not 0 <= start <= end_inclusive:
        raise ValueError(f"a segment of the offsets {start} to {end_inclusive} holds nothing")
    if not epochs:
        raise ValueError(f"the segment at {start} has no leader epochs")
    # Every record needs an epoch, or lineage could not be compared.
    if epochs[0][1] > start or epochs[-1][1] > end_inclusive:
        raise ValueError(
            f"leader epochs {epochs} do not cover the offsets {start} to {end_inclusive}"
        )
    for (epoch, offset), (next_epoch, next_offset) in itertools.pairwise(epochs):
        if next_epoch <= epoch or next_offset <= offset:
            raise ValueError(f"leader epochs {epochs} are not ascending")
