"""The offsets that groups have committed, those that wait for a transaction, and which may go.

A change is put on record first and is in force from then on; what is in a transaction is put aside
and counts once its marker says so. Of two for one partition the one that is later in the log counts
(a commit in a transaction may be older than one that was made outside it meanwhile).
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


class TopicPartition(NamedTuple):
    """What an offset is of."""

    topic: str
    partition: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """Times in milliseconds since the epoch; ``expire_timestamp_ms`` None: as the broker says;
    ``leader_epoch`` -1: not known; ``record_offset``: where it stands on record."""

    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    expire_timestamp_ms: int | None = None
    topic_id: uuid.UUID | None = None
    record_offset: int = -1

    @property
    def weight_bytes(self) -> int:
        """About what it takes of memory."""
        return _OVERHEAD_BYTES + len(self.metadata)

    def at(self, record_offset: int) -> "CommittedOffset":
        """The same, where it stands on record."""
        return replace(self, record_offset=record_offset)

    def record(self, group_id: str, of: TopicPartition) -> CoordinatorRecord:
        """As it stands on record."""
        key = OffsetCommitKey(group=group_id, topic=of.topic, partition=of.partition)
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
        """From its record."""
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


def tombstone(group_id: str, of: TopicPartition) -> CoordinatorRecord:
    """The offset is gone."""
    key = OffsetCommitKey(group=group_id, topic=of.topic, partition=of.partition)
    return record_of(key, None)


class Offsets:
    """Of all groups of one partition of ``__consumer_offsets``. Pure."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[TopicPartition, CommittedOffset]] = {}
        #: By producer id, and by epoch: a marker ends those of one id.
        self._pending: dict[int, dict[int, dict[str, dict[TopicPartition, CommittedOffset]]]] = {}
        #: How many open transactions have one for the partition.
        self._open: dict[str, dict[TopicPartition, int]] = {}
        self.weight_bytes = 0

    # ------------------------------------------------------------ what is there

    def of_group(self, group_id: str) -> Mapping[TopicPartition, CommittedOffset]:
        """All that the group has committed."""
        return self._groups.get(group_id, {})

    def groups(self) -> tuple[str, ...]:
        """Groups that have offsets, or will have once a transaction ends."""
        return tuple(self._groups.keys() | self._open.keys())

    def is_pending(self, group_id: str, of: TopicPartition) -> bool:
        """Is there a transaction that may change it?"""
        return of in self._open.get(group_id, {})

    def of_transactions(self, group_id: str) -> tuple[TopicPartition, ...]:
        """Those that a transaction may change."""
        return tuple(self._open.get(group_id, ()))

    def held(
        self, group_id: str, of: TopicPartition, producer: TransactionalProducer | None
    ) -> CommittedOffset | None:
        """What another one of that producer's transaction, or of none, takes the place of."""
        if producer is None:
            return self.of_group(group_id).get(of)
        epochs = self._pending.get(producer.producer_id, {})
        return epochs.get(producer.producer_epoch, {}).get(group_id, {}).get(of)

    # ------------------------------------------------------------ what comes and goes

    def put(
        self,
        group_id: str,
        of: TopicPartition,
        value: CommittedOffset,
        producer: TransactionalProducer | None = None,
    ) -> None:
        """It stands on record, in that producer's transaction or in none."""
        if producer is None:
            offsets = self._groups.setdefault(group_id, {})
            self._reweigh(offsets.get(of), value)
            offsets[of] = value
            return
        epochs = self._pending.setdefault(producer.producer_id, {})
        pending = epochs.setdefault(producer.producer_epoch, {}).setdefault(group_id, {})
        if of not in pending:
            count = self._open.setdefault(group_id, {})
            count[of] = count.get(of, 0) + 1
        self._reweigh(pending.get(of), value)
        pending[of] = value

    def remove(self, group_id: str, of: TopicPartition) -> None:
        """Its tombstone stands on record: what was put aside before does not count either."""
        if self.is_pending(group_id, of):
            for groups in chain.from_iterable(each.values() for each in self._pending.values()):
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
        """A marker stands on record: what the producer has put aside, in that epoch or an earlier
        one, counts from now on, or never will. The groups that this is about, and how many bytes
        more each takes."""
        about: Counter[str] = Counter()
        epochs = self._pending.get(producer.producer_id, {})
        for epoch in [each for each in epochs if each <= producer.producer_epoch]:
            for group_id, offsets in epochs.pop(epoch).items():
                before = self.weight_bytes
                for of, value in offsets.items():
                    self._close(group_id, of)
                    self._reweigh(value, None)
                    known = self._groups.get(group_id, {}).get(of)
                    if committed and (known is None or known.record_offset < value.record_offset):
                        self.put(group_id, of, value)
                about[group_id] += self.weight_bytes - before
        if not epochs:
            self._pending.pop(producer.producer_id, None)
        return about

    def _close(self, group_id: str, of: TopicPartition) -> None:
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

    # ------------------------------------------------------------ what may go

    def expired(
        self,
        group_id: str,
        since_ms: Callable[[TopicPartition, CommittedOffset], int | None],
        now_ms: int,
        retention_ms: int,
    ) -> Iterator[TopicPartition]:
        """Those that nobody needs any more (KIP-211). ``since_ms``: since when one is not in use,
        None: it is."""
        for of, value in self.of_group(group_id).items():
            if self.is_pending(group_id, of):
                continue
            base_ms = since_ms(of, value)
            if base_ms is None:
                continue
            if value.expire_timestamp_ms is not None:
                if now_ms >= value.expire_timestamp_ms:
                    yield of
            elif now_ms - base_ms >= retention_ms:
                yield of
