"""Restore of a topic from the tier alone, and transfer of the tier to a new cluster.

When a cluster is lost with its brokers' disks and the API's data, the tier has each tiered topic up
to its last copied segment: the topic object has its configuration, the heads have its ends. Three
steps, all repeatable, let a new cluster continue from there. The store's identity gets the new
cluster's id. Each head is claimed for the new cluster under a higher leader epoch (both fence what
is left of the old cluster). A Topic is created with its origin in the tier (``TierOrigin``). The
brokers find no data on their disks and take over the log from the tier, as after any unclean
election.
"""

import json
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Self

from tidemark.ids import id_text, parse_id
from tidemark.log_lineage import Restore, restored_epoch
from tidemark.logfiles.producer_snapshot import SnapshotFormatError, decode_snapshot
from tidemark.tier.maintenance import head_repair
from tidemark.tier.maintenance.head_repair import Evidence, Irreparable
from tidemark.tier.metadata import queries, transitions
from tidemark.tier.metadata.head import Head, new_head
from tidemark.tier.metadata.manifest import HeadWentBack, LoadedHead
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier
from tidemark.tier.segments.integrity import ObjectDamaged
from tidemark.tier.stores.objects import ObjectNotFound
from tidemark.tiering import DisablePolicy, Tiering, TieringState

#: A head that is further in its tiered epoch is never claimed by an earlier state of it.
_FURTHER = (
    TieringState.NONE,
    TieringState.DISABLING,
    TieringState.DISABLED,
    TieringState.ENABLED,
)
#: An annotation must not use up what only ever grows: far from any that came about by itself, and
#: far from the end.
_EPOCH_MAX, _PRODUCER_ID_MAX, _PARTITIONS_MAX = 2**30, 2**60, 10_000
#: Last writer's id in heads that no broker has written yet.
_NO_BROKER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOrigin:
    """Start of a Topic's partitions in the tier, as text for an annotation.

    ``leader_epoch``: of their first leaders, above all epochs in the heads. ``first_producer_id``:
    above all producer ids in the tier.
    """

    topic_id: uuid.UUID
    partitions: int
    leader_epoch: int
    tiering: Tiering
    first_producer_id: int = 0

    def text(self) -> str:
        """Return the text that ``parse`` reads."""
        tiering = self.tiering
        fields = {
            "topicId": id_text(self.topic_id),
            "partitions": self.partitions,
            "leaderEpoch": self.leader_epoch,
            "tiering": tiering.state.name,
            "tieredEpoch": tiering.epoch,
            "policy": None if tiering.policy is None else tiering.policy.name,
            "firstProducerId": self.first_producer_id,
        }
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def parse(cls, text: str) -> Self:
        """Return the origin in an annotation's text. Raises ValueError for any other text."""
        try:
            fields = json.loads(text)
            policy = fields["policy"]
            origin = cls(
                topic_id=parse_id(fields["topicId"]),
                partitions=int(fields["partitions"]),
                leader_epoch=int(fields["leaderEpoch"]),
                tiering=Tiering(
                    TieringState[fields["tiering"]],
                    int(fields["tieredEpoch"]),
                    None if policy is None else DisablePolicy[policy],
                ),
                first_producer_id=int(fields["firstProducerId"]),
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise ValueError(f"it is no text that tidemark restore writes: {error}") from error
        # The text comes from an annotation that a person may have edited, so every number has
        # bounds.
        numbers = (
            1 <= origin.partitions <= _PARTITIONS_MAX
            and 0 <= origin.leader_epoch <= _EPOCH_MAX
            and 0 <= origin.tiering.epoch <= _EPOCH_MAX
            and 0 <= origin.first_producer_id <= _PRODUCER_ID_MAX
        )
        if not numbers or not origin.tiering.ever_tiered:
            raise ValueError("its partitions, epochs, firstProducerId or tiering cannot be")
        return origin


@dataclass(frozen=True, slots=True, kw_only=True)
class Restorable:
    """Topic in the tier.

    ``heads``: by partition. A partition of ``topic`` without a head has nothing in the tier and
    starts empty.
    """

    topic: TopicObject
    heads: Mapping[int, Head]

    @property
    def partitions(self) -> int:
        """Number of partitions of the topic; its object may be older than its newest heads."""
        return max(self.topic.partitions, max(self.heads) + 1)

    @property
    def tiering(self) -> Tiering:
        """Most advanced tiering state of the partitions.

        An acknowledgement may not have reached all of their heads.
        """
        return max(
            (head.tiering for head in self.heads.values()),
            key=lambda tiering: (tiering.epoch, _FURTHER.index(tiering.state)),
        )

    @property
    def offsets(self) -> Mapping[int, tuple[int, int]]:
        """Return (log start, first lost offset) of each partition."""
        return {
            partition: (head.log_start_offset, head.next_copy_offset)
            for partition, head in sorted(self.heads.items())
        }


def restorable(
    tier: Tier, is_chosen: Callable[[str], bool] = lambda _: True
) -> Iterator[Restorable]:
    """Yield every topic of a chosen name that was not deleted and has a head.

    Blocks. Raises StoreUnavailable, ManifestCorrupt.
    """
    for topic in tier.topics.all():
        if not is_chosen(topic.name):
            continue
        numbers = tier.manifests.partitions(topic.topic_id)
        heads = {number: _newest(tier, topic.topic_id, number) for number in numbers}
        alive = {number: head for number, head in heads.items() if head.deleted_at_ms is None}
        if alive:
            yield Restorable(topic=topic, heads=alive)


def check_producer_ids(tier: Tier, found: Restorable) -> None:
    """Check that :func:`claim` will be able to read the producer ids of a topic.

    Blocks. Raises StoreUnavailable, which is SegmentUnreadable if this version cannot read them.
    """
    for head in found.heads.values():
        _first_free_producer_id(tier, head)


def claim(
    tier: Tier, found: Restorable, *, from_cluster: str, to_cluster: str, now_ms: int
) -> TierOrigin:
    """Transfer a topic's heads and topic object to the new cluster; return its new Topic's origin.

    Claiming the heads fences every writer of the old cluster, in case it still runs. ``found``: the
    topic as read from the tier. Blocks. May be repeated. Raises IllegalTransition if the topic
    belongs to a third cluster, ObjectVersionUnsupported if only a newer version can read its
    producer ids.
    """
    topic_id, heads = found.topic.topic_id, []
    # A partition that was never tiered has no head. It gets an empty one.
    for partition in range(found.partitions):
        if partition in found.heads:
            loaded = _repaired(tier, topic_id, partition, now_ms)
        else:
            loaded = tier.manifests.create(_empty(found, partition, from_cluster))
        committed = tier.manifests.commit(
            loaded,
            lambda head: transitions.hand_over(
                head, from_cluster=from_cluster, to_cluster=to_cluster, now_ms=now_ms
            ),
        )
        heads.append(committed.head)
    # Read after fencing: the old cluster may have committed until then.
    by_heads = restored_epoch(max(head.leader_epoch for head in heads), now_ms)
    # Heads from a backup, or a wrong clock, may have lower epochs than an earlier restore.
    earlier = (restore.leader_epoch + 1 for restore in found.topic.restores)
    leader_epoch = max(by_heads, max(earlier, default=0))
    # Offset at which each restored partition continues, which is the end of the tier.
    ends = {head.partition: head.next_copy_offset for head in heads}
    moved = replace(
        found.topic,
        cluster_id=to_cluster,
        partitions=found.partitions,
        restores=(Restore(leader_epoch, ends),),
    )
    # Recorded before the Topic is created: a reader beyond the tier's end must see the restore
    # before new records reuse its offsets.
    tier.topics.put(moved)
    claimed = Restorable(topic=moved, heads=dict(enumerate(heads)))
    return TierOrigin(
        topic_id=topic_id,
        partitions=claimed.partitions,
        leader_epoch=leader_epoch,
        tiering=claimed.tiering,
        first_producer_id=max(_first_free_producer_id(tier, head) for head in heads),
    )


def _newest(tier: Tier, topic_id: uuid.UUID, partition: int) -> Head:
    """Load the head; if it is older than its objects, return what a repair would write.

    The stored head does not change, but missing pages are rewritten.
    """
    try:
        return head_repair.check_against_objects(tier, topic_id, partition).head
    except HeadWentBack as error:
        try:
            return head_repair.repaired(tier, error, Evidence(), now_ms=0)
        except Irreparable as missing:
            raise HeadWentBack(f"{error}; {missing}", error.known, error.found) from error


def _repaired(tier: Tier, topic_id: uuid.UUID, partition: int, now_ms: int) -> LoadedHead:
    """Load the head; if it is older than its objects, repair it in the store."""
    try:
        return head_repair.check_against_objects(tier, topic_id, partition)
    except HeadWentBack as error:
        return head_repair.repair(tier, error, Evidence(), now_ms=now_ms)


def _empty(found: Restorable, partition: int, cluster_id: str) -> Head:
    return new_head(
        topic=found.topic.name,
        topic_id=found.topic.topic_id,
        partition=partition,
        cluster_id=cluster_id,
        leader_epoch=0,
        tiering=found.tiering,
        broker_id=_NO_BROKER,
        log_start_offset=0,
    )


def _first_free_producer_id(tier: Tier, head: Head) -> int:
    """Return an id above all producer ids at the end of a partition's log, 0 without any.

    A reused id would meet the sequence numbers of its former producer (KIP-98). Damaged data is
    left to the brokers, which report it. Raises ObjectVersionUnsupported, because 0 would reuse ids
    that a newer version recorded.
    """
    # The last copied segment contains the snapshot of all producers at its end.
    pages = tier.manifests.pages(head.topic_id, head.partition)
    entry = queries.find(head, pages, head.highest_remote_offset)
    if entry is None:
        return 0
    try:
        producers = decode_snapshot(tier.segments.fetch_aux(entry).producer_snapshot)
    except (ObjectDamaged, SnapshotFormatError, ObjectNotFound):
        return 0
    return max((producer.producer_id + 1 for producer in producers), default=0)
