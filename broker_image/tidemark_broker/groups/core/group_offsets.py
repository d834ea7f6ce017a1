"""Commits and deletions of offsets: permission, validation and expiry (Kafka's
OffsetMetadataManager).

Requests with many partitions are processed in parts, each validated again, so that other requests
do not wait for all of it.
"""

import uuid
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from tidemark_broker.coordinators.log import TransactionalProducer
from tidemark_broker.groups.core.classic_group import ClassicGroup
from tidemark_broker.groups.core.classic_rebalances import Rebalancing
from tidemark_broker.groups.core.consumer_group import ConsumerGroup
from tidemark_broker.groups.core.consumer_heartbeats import ConsumerGroups
from tidemark_broker.groups.core.journal import GroupContext
from tidemark_broker.groups.core.offsets import (
    CommittedOffset,
    OffsetKey,
    tombstone,
)
from tidemark_broker.groups.core.records import GroupMetadataKey, record_of
from tidemark_broker.groups.core.settings import Now
from tidemark_broker.groups.core.values import NO_GENERATION, GroupState, MemberIdentity

#: Tombstones written in one part.
_AT_ONCE = 250
#: From this version of OffsetCommit a missing group has an error of its own, distinct from an old
#: generation (KIP-848).
_NOT_FOUND_SINCE = 9
#: A group of either protocol.
Group: TypeAlias = ClassicGroup | ConsumerGroup


class NewOffset(NamedTuple):
    """An offset to commit. ``metadata`` None means no metadata, ``leader_epoch`` -1 unknown."""

    of: OffsetKey
    offset: int
    leader_epoch: int
    metadata: str | None
    topic_id: uuid.UUID | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetCommitter:
    """The committer: a member in a generation, or a standalone consumer with generation -1 and no
    id.

    ``version`` is that of OffsetCommit. ``retention_ms`` -1 means the broker's setting.
    """

    group_id: str
    who: MemberIdentity
    generation_id: int
    version: int = _NOT_FOUND_SINCE
    retention_ms: int = -1
    producer: TransactionalProducer | None = None


class Changed(NamedTuple):
    """One error for each offset.

    The result may be sent once the log is committed up to ``end_offset``.
    """

    errors: list[ErrorCode]
    end_offset: int


class GroupOffsets:
    """Offsets of all groups of one partition of ``__consumer_offsets``. Pure."""

    def __init__(
        self, context: GroupContext, rebalancing: Rebalancing, consumers: ConsumerGroups
    ) -> None:
        """Manage the offsets of the groups of both protocols in ``context``."""
        self._context = context
        self._rebalancing = rebalancing
        self._consumers = consumers

    def find(self, group_id: str) -> Group | None:
        """Return a group of either protocol, or None."""
        return self._context.groups.get(group_id) or self._context.consumer_groups.get(group_id)

    # ------------------------------------------------------------ OffsetCommit

    def commit(self, by: OffsetCommitter, new: Sequence[NewOffset], now: Now) -> Changed:
        """Handle OffsetCommit or TxnOffsetCommit: store the permitted offsets.

        Returns an error code for each offset, and the end offset of the records (0 for none).
        Raises CoordinatorError if nothing could be recorded.
        """
        # The member and its generation are checked once, then each offset.
        group = self.find(by.group_id)
        error = self._refusal(group, by)
        if error is ErrorCode.none and group is None and self._context.room.is_full:
            error = ErrorCode.group_max_size_reached
        if error is not ErrorCode.none:
            return Changed([error] * len(new), 0)
        errors = [self._offset_error(group, by, offset) for offset in new]
        kept = [n for n, error in zip(new, errors, strict=True) if error is ErrorCode.none]
        # A commit renews a classic member's session, as in Kafka.
        if by.producer is None and isinstance(group, ClassicGroup):
            self._rebalancing.renew_after_commit(group, by.who.member_id, now)
        if not kept:
            return Changed(errors, 0)
        return Changed(errors, self._keep(by, kept, now))

    def _keep(self, by: OffsetCommitter, kept: Sequence[NewOffset], now: Now) -> int:
        """Record offsets, apply them in memory, and return the end offset of the records."""
        # Clients before OffsetCommit version 5 may send a retention of their own.
        expire_ms = None if by.retention_ms < 0 else now.ms + by.retention_ms
        values = [
            CommittedOffset(
                offset=offset.offset,
                leader_epoch=offset.leader_epoch,
                metadata=offset.metadata or "",
                commit_timestamp_ms=now.ms,
                expire_timestamp_ms=expire_ms,
                topic_id=offset.topic_id,
            )
            for offset in kept
        ]
        records = [
            value.record(by.group_id, offset.of) for offset, value in zip(kept, values, strict=True)
        ]
        end_offset = self._context.journal.append(records, by.producer)
        # The offset of each record decides between commits inside and outside of transactions.
        first, before = end_offset - len(records), self._context.offsets.weight_bytes
        for number, (offset, value) in enumerate(zip(kept, values, strict=True)):
            self._context.offsets.put(by.group_id, offset.of, value.at(first + number), by.producer)
        self._context.room.add(by.group_id, self._context.offsets.weight_bytes - before)
        # Creates the group if this commit is the first sign of it.
        self._group(by.group_id, now).recorded_below = end_offset
        return end_offset

    def _group(self, group_id: str, now: Now) -> Group:
        group = self.find(group_id)
        if group is None:  # offsets of a standalone consumer create a group without members
            group = self._context.groups[group_id] = ClassicGroup(group_id, now.ms)
            self._context.room.weigh(group)
            self._rebalancing.check_later(group_id, now)
        return group

    def _refusal(self, group: Group | None, by: OffsetCommitter) -> ErrorCode:
        """Return why the whole commit is refused, NONE if it is not.

        ``group``: None if it does not exist. A standalone consumer commits without a generation.
        """
        # Checks in Kafka's order (ClassicGroup.validateOffsetCommit).
        is_transactional = by.producer is not None
        takes_part = by.generation_id > NO_GENERATION
        if group is None:
            if not takes_part:
                return ErrorCode.none
            if not is_transactional and by.version >= _NOT_FOUND_SINCE:
                return ErrorCode.group_id_not_found
            return ErrorCode.illegal_generation
        if isinstance(group, ConsumerGroup):
            return _consumer_refusal(group, by)
        # A standalone consumer may commit to an empty group.
        if not takes_part and group.state is GroupState.EMPTY:
            return ErrorCode.none
        if takes_part or by.who.member_id or by.who.instance_id is not None:
            error = group.validate(by.who)
            if error is not ErrorCode.none:
                return error
            if by.generation_id != group.generation_id:
                return ErrorCode.illegal_generation
        # TxnOffsetCommit of older clients has no member, and is accepted for any generation.
        elif not is_transactional:
            return ErrorCode.unknown_member_id
        # Assignments are being distributed. The member must rejoin before it commits.
        if not is_transactional and group.state is GroupState.COMPLETING_REBALANCE:
            return ErrorCode.rebalance_in_progress
        return ErrorCode.none

    def _offset_error(self, group: Group | None, by: OffsetCommitter, new: NewOffset) -> ErrorCode:
        """Return why one offset of a permitted commit is refused, NONE if it is not."""
        if isinstance(group, ConsumerGroup) and by.generation_id > NO_GENERATION:
            member_id, epoch = by.who.member_id, by.generation_id
            if not group.may_commit(member_id, epoch, new.topic_id, new.of.partition):
                # The member's epoch is old, and the partition was not assigned to it in that epoch.
                return _stale(group, by)
        if (
            new.metadata is not None
            and len(new.metadata) > self._context.settings.offset_metadata_max
        ):
            return ErrorCode.offset_metadata_too_large
        # Memory may only grow within the limit. Shorter metadata always succeeds.
        before = self._context.offsets.replaced_offset(by.group_id, new.of, by.producer)
        more = len(new.metadata or "")
        if before is not None:
            more -= len(before.metadata)
        if (before is None or more > 0) and self._context.room.is_full_for(more):
            return ErrorCode.invalid_commit_offset_size
        return ErrorCode.none

    def end_transaction(
        self, producer: TransactionalProducer, *, committed: bool, end_offset: int
    ) -> None:
        """Apply the end of a transaction whose marker ends at ``end_offset``.

        Its changes are only reported once the marker is committed.
        """
        about = self._context.offsets.end_transaction(producer, committed=committed)
        for group_id, more_bytes in about.items():
            self._context.room.add(group_id, more_bytes)
            group = self.find(group_id)
            if group is not None:
                # Readers wait for the marker, since it could still be lost with this leader.
                group.recorded_below = end_offset

    # ------------------------------------------------------------ OffsetDelete, DeleteGroups

    def delete_offsets(self, group_id: str, of: Sequence[OffsetKey]) -> Changed | ErrorCode:
        """Handle OffsetDelete: delete offsets of topics that the group does not consume.

        Returns an error code for each partition, or the error of the group if it rejects all.
        """
        group = self.find(group_id)
        if group is None:
            return ErrorCode.group_id_not_found
        # A classic group of another type may consume anything, so it must be empty.
        consumes = isinstance(group, ConsumerGroup) or group.is_consumer_group
        if not consumes and not group.is_empty:
            return ErrorCode.non_empty_group
        errors = [
            ErrorCode.group_subscribed_to_topic
            if group.is_subscribed_to(tp.topic)
            else ErrorCode.none
            for tp in of
        ]
        # Only existing offsets need a tombstone. A missing one is no error.
        known = self._context.offsets.of_group(group_id)
        gone = [
            tp
            for tp, error in zip(of, errors, strict=True)
            if error is ErrorCode.none and tp in known
        ]
        return Changed(errors, self._remove(group, gone))

    def delete_some_of_group(self, group_id: str) -> tuple[ErrorCode, bool, int]:
        """Delete an empty group with its offsets, or a part of the offsets if there are many.

        Returns the error, whether the call must be repeated, and the end offset of the records.
        """
        group = self.find(group_id)
        if group is None:
            return ErrorCode.group_id_not_found, False, 0
        if not group.is_empty:
            return ErrorCode.non_empty_group, False, 0
        # Pending offsets are included, or a later marker would revive the group.
        known = chain(
            self._context.offsets.of_group(group_id),
            self._context.offsets.of_transactions(group_id),
        )
        gone = list(dict.fromkeys(islice(known, _AT_ONCE)))
        end_offset = self._remove(group, gone)
        if self._has_offsets(group_id):
            return ErrorCode.none, True, end_offset
        return ErrorCode.none, False, self._remove_group(group)

    def _has_offsets(self, group_id: str) -> bool:
        return bool(
            self._context.offsets.of_group(group_id)
            or self._context.offsets.of_transactions(group_id)
        )

    def _remove(self, group: Group, gone: Sequence[OffsetKey]) -> int:
        # An empty list would only append an empty batch.
        if gone:
            group.recorded_below = self._context.journal.append(
                [tombstone(group.group_id, tp) for tp in gone]
            )
            before = self._context.offsets.weight_bytes
            for tp in gone:
                self._context.offsets.remove(group.group_id, tp)
            self._context.room.add(group.group_id, self._context.offsets.weight_bytes - before)
        return group.recorded_below

    def _remove_group(self, group: Group) -> int:
        if isinstance(group, ConsumerGroup):
            end_offset = self._consumers.forget(group)
            self._rebalancing.check_no_more(group.group_id)
            return end_offset
        end_offset = self._context.journal.append(
            [record_of(GroupMetadataKey(group=group.group_id), None)]
        )
        self._rebalancing.forget(group)
        return end_offset

    # ------------------------------------------------------------ expiry

    def check(self, group_id: str, now: Now) -> bool:
        """Delete some expired offsets, and the group if nothing else of it remains (KIP-211).

        Returns whether more offsets may be expired, so that the call must be repeated. Raises
        CoordinatorError.
        """
        group = self.find(group_id)
        if group is None:
            return False
        retention_ms = self._context.settings.offsets_retention_ms
        expired = self._context.offsets.expired(
            group_id, _unused_since(group), now.ms, retention_ms
        )
        gone = list(islice(expired, _AT_ONCE))
        self._remove(group, gone)
        # A member that has only received its id will still join.
        is_unused = group.is_empty and not (isinstance(group, ClassicGroup) and group.pending_join)
        if is_unused and not self._has_offsets(group_id):
            self._remove_group(group)
        return len(gone) == _AT_ONCE

    def forget_some_of_topic(self, group_id: str, topic: str, topic_id: uuid.UUID) -> bool:
        """Delete some offsets of a deleted topic.

        Return whether more may remain. Raises CoordinatorError.
        """
        group = self.find(group_id)
        if group is None:
            return False
        gone = list(islice(self._of_topic(group_id, topic, topic_id), _AT_ONCE))
        self._remove(group, gone)
        return len(gone) == _AT_ONCE

    def _of_topic(self, group_id: str, topic: str, topic_id: uuid.UUID) -> Iterator[OffsetKey]:
        for of, value in self._context.offsets.of_group(group_id).items():
            if of.topic == topic and value.topic_id in (None, topic_id):
                yield of


def _consumer_refusal(group: ConsumerGroup, by: OffsetCommitter) -> ErrorCode:
    """Return why a commit to a consumer-protocol group is refused, NONE if it is not.

    Only errors that apply to all partitions: an old epoch may still be valid for some of them.
    """
    is_transactional = by.producer is not None
    if by.generation_id <= NO_GENERATION:
        # Standalone consumers, and transactional clients that send no member.
        is_anonymous = is_transactional and not by.who.member_id and by.who.instance_id is None
        if group.is_empty or is_anonymous:
            return ErrorCode.none
    member = group.members.get(by.who.member_id)
    if member is None:
        return ErrorCode.unknown_member_id
    is_classic = member.metadata.classic is not None
    # An older OffsetCommit has no error codes for a stale member epoch (KIP-848).
    if not is_transactional and not is_classic and by.version < _NOT_FOUND_SINCE:
        return ErrorCode.unsupported_version
    if by.generation_id <= NO_GENERATION:
        return _stale(group, by)
    return ErrorCode.none


def _stale(group: ConsumerGroup, by: OffsetCommitter) -> ErrorCode:
    member = group.members.get(by.who.member_id)
    is_classic = member is not None and member.metadata.classic is not None
    if by.producer is None and not is_classic:
        return ErrorCode.stale_member_epoch
    return ErrorCode.illegal_generation


def _unused_since(
    group: Group,
) -> Callable[[OffsetKey, CommittedOffset], int | None]:
    """Return a function that yields since when an offset is unused (ms), None while it is used.

    Offsets expire after a retention time in which the group does not use them (KIP-211).
    """

    # Four rules, of which the group's protocol and state select one.
    def committed(_: OffsetKey, value: CommittedOffset) -> int | None:
        return value.commit_timestamp_ms

    def emptied(_: OffsetKey, value: CommittedOffset) -> int | None:
        since_ms = group.state_timestamp_ms if isinstance(group, ClassicGroup) else -1
        return value.commit_timestamp_ms if since_ms < 0 else since_ms

    def unsubscribed(of: OffsetKey, value: CommittedOffset) -> int | None:
        return None if group.is_subscribed_to(of.topic) else value.commit_timestamp_ms

    def never(_: OffsetKey, __: CommittedOffset) -> int | None:
        return None

    # The protocol decides what unused means; see Kafka's OffsetExpirationCondition.
    if isinstance(group, ConsumerGroup):
        return committed if group.is_empty else unsubscribed
    # A group without a protocol has only standalone consumers: each commit shows that one runs.
    if group.protocol_type is None:
        return committed
    if group.state is GroupState.EMPTY:
        return emptied
    # While the subscriptions are unknown, or about to change, every offset counts as used.
    is_known = group.is_consumer_group and group.subscribed is not None
    return unsubscribed if is_known and group.state is GroupState.STABLE else never
