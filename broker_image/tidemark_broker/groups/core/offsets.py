"""Committed offsets of groups, offsets pending in transactions, and expiry.

A change is recorded first and then applied. Offsets of an open transaction are pending and count
once its marker commits them. Of two offsets for a partition the later one in the log counts: a
transactional commit may be older than one outside the transaction.
"""

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import NamedTuple

from tidemark_broker.coordinators.log import CoordinatorRecord, TransactionalProducer
from tidemark_broker.groups.core.records import (
    ExpiringOffsetCommitValue,
    OffsetCommitKey,
    OffsetCommitValue,
    record_of,
)

_OVERHEAD_BYTES = 300


class OffsetKey(NamedTuple):
    """Partition of an offset."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """A committed offset.

    Times are in ms since the epoch. ``expire_timestamp_ms`` None means the broker's retention.
    ``leader_epoch`` -1 means unknown. ``record_offset`` is the offset of its record.
    """

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    topic_id: uuid.UUID | None = None
    record_offset: int = -1

    @property
    def weight_bytes(self) -> int:
        """Approximate memory in bytes."""
        return _OVERHEAD_BYTES + len(self.metadata)

    def at(self, record_offset: int) -> "CommittedOffset":
        """Return a copy with the offset of its record."""
        return replace(self, record_offset=record_offset)

    def record(self, group_id: str, of: OffsetKey) -> CoordinatorRecord:
        """Return the offset as a record of ``__consumer_offsets``."""
        key = OffsetCommitKey(group=group_id, topic=of.topic, partition=of.partition)
        # Only value version 1 has an expiry, and it has no leader epoch.
        if self.expire_timestamp_ms is not None:
            return record_of(
                key,
                ExpiringOffsetCommitValue(
                    offset=self.offset,
                    metadata=self.metadata,
                    commit_timestamp=self.commit_timestamp_ms,
                    expire_timestamp=self.expire_timestamp_ms,
                ),
            )
        return record_of(
            key,
            OffsetCommitValue(
                offset=self.offset,
                leader_epoch=self.leader_epoch,
                metadata=self.metadata,
                commit_timestamp=self.commit_timestamp_ms,
                topic_id=self.topic_id,
            ),
        )

    @classmethod
    def of(
        cls, value: OffsetCommitValue | ExpiringOffsetCommitValue, record_offset: int
    ) -> "CommittedOffset":
        """Convert a record's value. ``record_offset``: offset of the record in the log."""
        # Version 1 has neither a leader epoch nor a topic id.
        if isinstance(value, ExpiringOffsetCommitValue):
            return cls(
                offset=value.offset,
                leader_epoch=-1,
                metadata=value.metadata,
                commit_timestamp_ms=value.commit_timestamp,
                expire_timestamp_ms=value.expire_timestamp,
                record_offset=record_offset,
            )
        return cls(
            offset=value.offset,
            leader_epoch=value.leader_epoch,
            metadata=value.metadata,
            commit_timestamp_ms=value.commit_timestamp,
            topic_id=value.topic_id,
            record_offset=record_offset,
        )


def tombstone(group_id: str, of: OffsetKey) -> CoordinatorRecord:
    """Return the tombstone of an offset."""
    key = OffsetCommitKey(group=group_id, topic=of.topic, partition=of.partition)
    return record_of(key, None)


class CommittedOffsets:
    """Offsets of all groups of one partition of ``__consumer_offsets``. Pure."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[OffsetKey, CommittedOffset]] = {}
        #: Pending offsets by producer id and epoch. A marker ends those of one id.
        self._pending: dict[int, dict[int, dict[str, dict[OffsetKey, CommittedOffset]]]] = {}
        #: Number of open transactions with an offset for the partition.
        self._open: dict[str, dict[OffsetKey, int]] = {}
        self.weight_bytes = 0

    # ------------------------------------------------------------ what is there

    def of_group(self, group_id: str) -> Mapping[OffsetKey, CommittedOffset]:
        """Committed offsets of the group."""
        return self._groups.get(group_id, {})

    def groups(self) -> tuple[str, ...]:
        """Ids of groups with committed or pending offsets."""
        return tuple(self._groups.keys() | self._open.keys())

    def is_pending(self, group_id: str, of: OffsetKey) -> bool:
        """True if an open transaction may change the offset."""
        return of in self._open.get(group_id, {})

    def of_transactions(self, group_id: str) -> tuple[OffsetKey, ...]:
        """Partitions whose offset an open transaction may change."""
        return tuple(self._open.get(group_id, ()))

    def replaced_offset(
        self, group_id: str, of: OffsetKey, producer: TransactionalProducer | None
    ) -> CommittedOffset | None:
        """Return the offset that a new one of the same producer, or outside of transactions,
        replaces.
        """
        if producer is None:
            return self.of_group(group_id).get(of)
        epochs = self._pending.get(producer.producer_id, {})
        return epochs.get(producer.producer_epoch, {}).get(group_id, {}).get(of)

    # ------------------------------------------------------------ what comes and goes

    def put(
        self,
        group_id: str,
        of: OffsetKey,
        value: CommittedOffset,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """Apply an offset whose record was appended.

        ``producer``: its transaction, in which the offset is pending until the marker. None: the
        offset is committed at once.
        """
        # Committed at once, and visible to fetches.
        if producer is None:
            offsets = self._groups.setdefault(group_id, {})
            self._reweigh(offsets.get(of), value)
            offsets[of] = value
            return
        epochs = self._pending.setdefault(producer.producer_id, {})
        pending = epochs.setdefault(producer.producer_epoch, {}).setdefault(group_id, {})
        # Counted once per transaction, however often it commits the partition.
        if of not in pending:
            count = self._open.setdefault(group_id, {})
            count[of] = count.get(of, 0) + 1
        self._reweigh(pending.get(of), value)
        pending[of] = value

    def remove(self, group_id: str, of: OffsetKey) -> None:
        """Apply a tombstone. It also removes offsets that were pending before."""
        if self.is_pending(group_id, of):
            for groups in chain.from_iterable(epochs.values() for epochs in self._pending.values()):
                value = groups.get(group_id, {}).pop(of, None)
                if value is not None:
                    self._reweigh(value, None)
                    self._close(group_id, of)
        offsets = self._groups.get(group_id)
        if offsets is None:
            return
        self._reweigh(offsets.pop(of, None), None)
        if not offsets:
            del self._groups[group_id]

    def end_transaction(
        self, producer: TransactionalProducer, *, committed: bool
    ) -> Mapping[str, int]:
        """Apply a transaction marker: the producer's pending offsets are committed or dropped.

        Offsets that the producer wrote in that epoch or earlier are affected. Returns the change of
        memory in bytes, by affected group.
        """
        about: Counter[str] = Counter()
        epochs = self._pending.get(producer.producer_id, {})
        # A marker may have a newer epoch than the offsets, after the producer was fenced.
        for epoch in [known for known in epochs if known <= producer.producer_epoch]:
            for group_id, offsets in epochs.pop(epoch).items():
                before = self.weight_bytes
                for of, value in offsets.items():
                    self._close(group_id, of)
                    self._reweigh(value, None)
                    known = self._groups.get(group_id, {}).get(of)
                    # A commit outside the transaction may be later in the log, and then stays.
                    if committed and (known is None or known.record_offset < value.record_offset):
                        self.put(group_id, of, value)
                about[group_id] += self.weight_bytes - before
        if not epochs:
            self._pending.pop(producer.producer_id, None)
        return about

    def _close(self, group_id: str, of: OffsetKey) -> None:
        count = self._open[group_id]
        count[of] -= 1
        if not count[of]:
            del count[of]
        if not count:
            del self._open[group_id]

    def _reweigh(self, before: CommittedOffset | None, after: CommittedOffset | None) -> None:
        self.weight_bytes += (0 if after is None else after.weight_bytes) - (
            0 if before is None else before.weight_bytes
        )

    # ------------------------------------------------------------ expiry

    def expired(
        self,
        group_id: str,
        since_ms: Callable[[OffsetKey, CommittedOffset], int | None],
        now_ms: int,
        retention_ms: int,
    ) -> Iterator[OffsetKey]:
        """Yield the partitions whose offsets have expired (KIP-211).

        ``since_ms``: returns since when an offset is unused, None while it is used.
        ``retention_ms``: time after which an unused offset expires.
        """
        for of, value in self.of_group(group_id).items():
            # The transaction would write the offset again, so it is not expired yet.
            if self.is_pending(group_id, of):
                continue
            base_ms = since_ms(of, value)
            if base_ms is None:
                continue
            # Set by the client (OffsetCommit below version 5); it replaces the broker's retention.
            if value.expire_timestamp_ms is not None:
                if now_ms >= value.expire_timestamp_ms:
                    yield of
            elif now_ms - base_ms >= retention_ms:
                yield of
