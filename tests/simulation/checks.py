"""The invariants of docs/explanation/architecture.md, each checked in every step that concerns it.

Nothing here decides anything for the code under test: the checkers read what was written to the API
server and the object store, what brokers serve, and what clients received. Excused losses are
counted in one place (:class:`Account`): what a power cut or a lost disk took from which replica,
until that replica has it again.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tests.simulation.brokers import (
    BrokerProcess,
    SimulatedBatch,
    SimulatedMachine,
    batches_in,
    batches_of,
)
from tests.simulation.deletions import Deletions
from tidemark.tier.maintenance.sweeper import Sweeper
from tidemark.tier.metadata import queries
from tidemark.tier.metadata.codec import decode_head, decode_page
from tidemark.tier.metadata.head import Head
from tidemark.tier.metadata.layout import page_key
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark.wire import control
from tidemark_broker.replication.metadata import TopicMetadata
from tidemark_broker.replication.partition import Partition
from tidemark_operator.controller.state.model import NO_LEADER, PartitionRow
from tidemark_operator.controller.state.rows import decode_row
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, Json

Key = tuple[str, int]


class Account:
    """Invariant 1's excuse: which replicas lost bytes that were not synced, and have them not
    again. An offset is excused once at least ``min.insync.replicas`` replicas lost it at once."""

    def __init__(self) -> None:
        self.lost: dict[Key, dict[int, list[tuple[int, int]]]] = {}

    def note(self, node: int, key: Key, start: int, end: int) -> None:
        self.lost.setdefault(key, {}).setdefault(node, []).append((start, end))

    def losers(self, key: Key, offset: int) -> list[int]:
        found = self.lost.get(key, {})
        return [
            node
            for node, ranges in found.items()
            if any(start <= offset < end for start, end in ranges)
        ]

    def has_again(self, node: int, key: Key, ledger: "Ledger", partition: Partition) -> None:
        """A replica has caught up: what it lost counts no more, where it holds the same again."""
        ranges = self.lost.get(key, {}).get(node)
        if not ranges:
            return
        left = [range_ for range_ in ranges if not _holds(partition, ledger, *range_)]
        if left:
            self.lost[key][node] = left
        else:
            del self.lost[key][node]


def _holds(partition: Partition, ledger: "Ledger", start: int, end: int) -> bool:
    if partition.log.next_offset < end:
        return False
    # The replica has it again if every committed batch in the range is there with the same CRC.
    # What is below its local start is in the tier.
    held = {batch.base_offset: batch for batch in batches_in(partition, start, end)}
    below = partition.log.local_log_start_offset
    return all(
        base in held and held[base].crc == batch.crc
        for base, batch in ledger.committed.items()
        if start <= base < end and base >= below
    )


class Ledger:
    """Clients' knowledge of a partition: batches below a high watermark, and acknowledged ones."""

    def __init__(self, topic: "TopicFacts") -> None:
        self.topic = topic
        self.committed: dict[int, SimulatedBatch] = {}
        self.end = 0
        self.acknowledged = 0
        self.acknowledged_end = 0
        #: Log start up to which a deletion was acknowledged.
        self.deleted_to = 0

    def forget_from(self, offset: int) -> None:
        """Remove excused losses."""
        # An excused loss ends what clients may rely on, so later checks must not expect it.
        for base in [b for b, batch in self.committed.items() if batch.last_offset >= offset]:
            del self.committed[base]
        self.end = min(self.end, offset)
        self.acknowledged_end = min(self.acknowledged_end, offset)


class TopicFacts:
    """A run's choices for a topic."""

    def __init__(
        self,
        name: str,
        *,
        min_isr: int,
        unclean: bool,
        factor: int,
        keeps: bool = False,
        tiered: bool = False,
    ) -> None:
        """``keeps``: its records never expire."""
        self.name = name
        self.min_isr = min(min_isr, factor)
        self.unclean = unclean
        self.factor = factor
        self.keeps = keeps
        self.tiered = tiered


def _is_whole(process: BrokerProcess, key: Key) -> bool:
    partition = process.partition(*key)
    return partition is not None and partition.doubt is None and partition.log.failure is None


class Checks:
    """All checkers of a run; the first violation ends it."""

    def __init__(self, cluster: Any) -> None:
        self.cluster = cluster
        self.world = cluster.world
        self.account = Account()
        self.deletions = Deletions(self)
        #: The policies of the disablements that were begun.
        self.policies: set[DisablePolicy] = set()
        #: A disablement with Delete was acknowledged, and nothing was enabled since.
        self.remote_is_deleted = False
        self.ledgers: dict[Key, Ledger] = {}
        self.topics: dict[str, TopicFacts] = {}
        self.violation: tuple[str, str] | None = None
        self.rows: dict[Key, PartitionRow] = {}
        self.heads: dict[Key, Head] = {}
        self.custom: dict[object, bytes | None] = {}
        self._entries: dict[object, SegmentEntry] = {}
        self.events: list[str] = []
        self._names: dict[object, str] = {}
        self._led: dict[tuple[Key, int], BrokerProcess] = {}
        self._texts: dict[str, set[str]] = {}
        self._filled: set[tuple[Key, int]] = set()
        self._tiered_epoch = 0
        self._live_keys: dict[Key, frozenset[str]] = {}
        #: Leader epochs that began with an unclean election (or after one, until recovered).
        self._unclean: dict[Key, int] = {}
        #: Led at some time by a replica that lacked what the account excuses.
        self._excused: set[Key] = set()

    def add_topic(self, facts: TopicFacts, partitions: int) -> None:
        self.topics[facts.name] = facts
        for number in range(partitions):
            self.ledgers[facts.name, number] = Ledger(facts)

    def grow(self, topic: str, partitions: int) -> None:
        """Record that the topic has more partitions."""
        for number in range(partitions):
            self.ledgers.setdefault((topic, number), Ledger(self.topics[topic]))

    def fail(self, invariant: str, text: str) -> None:
        """A violation; ``invariant`` is its number in docs/explanation/architecture.md."""
        if self.violation is None:
            self.violation = (invariant, text)
            self.note(f"VIOLATION of invariant {invariant}: {text}")
        self.world.over = True

    def is_unclean(self, key: Key) -> bool:
        """Whether a leader was ever elected uncleanly."""
        return key in self._unclean

    def note(self, text: str) -> None:
        """A line of the run's story."""
        self.events.append(f"{self.world.now_s:9.4f} s  {text}")

    # ------------------------------------------------------------ losses

    def lost(self, node: int, key: Key, start: int, end: int) -> None:
        """A replica's disk came back without these offsets."""
        self.note(f"broker {node} lost {key[0]}-{key[1]} from {start} to {end}")
        self.account.note(node, key, start, end)

    # ------------------------------------------------------------ replicas, after each step

    def watcher(self, process: BrokerProcess) -> Callable[[], None]:
        """Return the function that is called after each step of a broker's process."""
        assert process.broker is not None
        hosted = process.broker.manager._hosted.by_key
        # Most steps change no partition. Comparing four values skips them.
        seen: dict[Partition, tuple[Any, ...]] = {}
        topics, shown = process.broker.manager.metadata.topics, dict[str, int]()

        def watch() -> None:
            self._shown(process, topics, shown)
            for partition in hosted.values():
                bounds = partition.log.bounds
                state = (
                    bounds.high_watermark,
                    bounds.end,
                    bounds.log_start,
                    partition.leader,
                )
                before = seen.get(partition)
                if before != state:
                    seen[partition] = state
                    self._moved(process, partition, before)

        return watch

    def _shown(
        self, process: BrokerProcess, topics: Mapping[str, TopicMetadata], shown: dict[str, int]
    ) -> None:
        """Invariant 28: a topic never has fewer partitions in Metadata than a broker has shown
        before: keys, groups and transactional ids are hashed over them."""
        for name in self.topics:
            view = topics.get(name)
            count = 0 if view is None else len(view.partitions)
            if count < shown.get(name, 0):
                self.fail(
                    "28",
                    f"broker {process.node_id} shows {count} partitions of {name}, it has shown "
                    f"{shown[name]}",
                )
            shown[name] = count

    def proven_without(self, down: SimulatedMachine) -> dict[Key, list[BrokerProcess]]:
        """Return partitions whose committed records the other replicas prove: they are whole, and
        fewer than min.insync.replicas, which is most of the replicas, are missing."""
        found: dict[Key, list[BrokerProcess]] = {}
        for key, ledger in self.ledgers.items():
            row = self.rows.get(key)
            # With a minimum of half of the replicas or less, two groups that do not overlap could
            # have committed.
            if row is None or 2 * ledger.topic.min_isr <= len(row.replicas):
                continue
            machines = [self.cluster.machines[node] for node in row.hosts if node != down.node_id]
            whole = [
                machine.alive
                for machine in machines
                if machine.alive and _is_whole(machine.alive, key)
            ]
            if len(row.replicas) - len(whole) < ledger.topic.min_isr:
                found[key] = whole
        return found

    def led_without(self, down: SimulatedMachine, proven: dict[Key, list[BrokerProcess]]) -> None:
        """Invariant 28: a live broker leads each of the partitions, though etcd was restored
        while one broker was down.
        """
        for key, processes in proven.items():
            row = self.rows[key]
            # The broker is back or another one restarted: the premise no longer holds.
            if down.alive is not None or any(
                process.machine.alive is not process for process in processes
            ):
                continue
            if row.leader not in [process.node_id for process in processes]:
                self.fail(
                    "28",
                    f"{key[0]}-{key[1]} is not led without broker {down.node_id}: {row}",
                )

    def _moved(
        self, process: BrokerProcess, partition: Partition, before: tuple[Any, ...] | None
    ) -> None:
        key = (partition.topic, partition.partition)
        ledger, log, leader = self.ledgers.get(key), partition.log, partition.leader
        # A removed or failed replica shows no state that counts.
        if ledger is None or partition.removed or log.failure is not None:
            return
        self._bounds(process, partition)
        self.deletions.moved(partition)
        # Growth may have restored what a power cut took.
        if before is not None and log.next_offset > before[1]:
            self.account.has_again(process.node_id, key, ledger, partition)
        if leader is None or not partition.is_leader:
            return
        # A new leadership: everything that was committed has to be there.
        if before is None or before[3] is not leader:
            self._elected(process, partition, key, ledger)
            self._committed(process, partition, key, ledger, log.local_log_start_offset)
            return
        # The same leadership as before the step.
        self._never_back(partition, before)
        if log.high_watermark > before[0]:
            self._min_isr(partition, ledger)
            self._committed(process, partition, key, ledger, before[0])
        self._prefix(partition, key)

    def _bounds(self, process: BrokerProcess, partition: Partition) -> None:
        """Invariant 13 (and the order that bounds.py promises): log start <= local log start <=
        high watermark <= log end, on every replica, always."""
        log = partition.log
        if not (
            0
            <= log.log_start_offset
            <= log.local_log_start_offset
            <= log.high_watermark
            <= log.next_offset
        ):
            self.fail(
                "13",
                f"{partition.tp} on broker {process.node_id}: log start {log.log_start_offset}, "
                f"local {log.local_log_start_offset}, high watermark {log.high_watermark}, end "
                f"{log.next_offset}",
            )

    def _never_back(self, partition: Partition, before: tuple[Any, ...]) -> None:
        """Invariant 2, as clients of one leader see it: while it leads, its high watermark and log
        start never go back (over leaders: :meth:`client_saw_start`)."""
        log = partition.log
        if log.high_watermark < before[0] or log.log_start_offset < before[2]:
            self.fail(
                "2",
                f"{partition.tp}: high watermark {before[0]} to {log.high_watermark}, log start "
                f"{before[2]} to {log.log_start_offset} under one leader",
            )

    def _elected(
        self, process: BrokerProcess, partition: Partition, key: Key, ledger: Ledger
    ) -> None:
        """Invariants 24 (one leader per epoch), 1 and 4: who leads has all that was committed, in
        its log or, below its local start, in the tier. Excused: an unclean election where the topic
        allows it, and what the account excuses."""
        epoch = partition.leader_epoch
        self.note(
            f"broker {process.node_id} leads {partition.tp} in epoch {epoch}, ISR {partition.isr}, "
            f"log {partition.log_start_offset}..{partition.high_watermark}..{partition.next_offset}"
        )
        # Two leaders in one epoch would mean that the epoch was given out twice.
        other = self._led.setdefault((key, epoch), process)
        if other is not process:
            self.fail("24", f"{partition.tp}: two processes lead in epoch {epoch}")
        missing = self._first_missing(partition, key, ledger)
        if missing is None:
            return
        losers = self.account.losers(key, missing)
        # Two excuses: an allowed unclean election, and a loss on enough replicas at once.
        unclean = self._unclean.get(key, -1) >= 0 and ledger.topic.unclean
        if unclean or len(losers) >= ledger.topic.min_isr:
            self.note(f"{partition.tp}: excused, gone from {missing} on (lost by {losers})")
            self._excused.add(key)
            ledger.forget_from(missing)
            return
        row = self.rows.get(key)
        if row is not None and row.leader_epoch > epoch:
            return  # it was superseded before it began
        self.fail(
            "1",
            f"broker {process.node_id} leads {partition.tp} in epoch {epoch} without offset "
            f"{missing}: its log holds {partition.log_start_offset}, local "
            f"{partition.log.local_log_start_offset}, to "
            f"{partition.next_offset}, {self._tier_text(key)}committed was to {ledger.end}, "
            f"acknowledged to {ledger.acknowledged_end}; lost by {losers}, min.insync.replicas "
            f"{ledger.topic.min_isr}",
        )

    def _tier_text(self, key: Key) -> str:
        head = self.heads.get(key)
        if head is None:
            return ""
        return f"the tier {head.remote_log_start_offset} to {head.highest_remote_offset}, "

    def _first_missing(self, partition: Partition, key: Key, ledger: Ledger) -> int | None:
        log = partition.log
        start = log.local_log_start_offset
        # Compare with the ledger, which has every batch that was ever below a high watermark.
        held = {batch.base_offset: batch for batch in batches_in(partition, start, ledger.end)}
        missing = [
            base
            for base, batch in ledger.committed.items()
            if base >= start and (base not in held or held[base].crc != batch.crc)
        ]
        if ledger.end > log.next_offset:
            missing.append(log.next_offset)
        return min(missing) if missing else self._gap(partition, key)

    def _gap(self, partition: Partition, key: Key) -> int | None:
        """Invariant 4: an offset between log start and local log start that the tier has not."""
        log, head = partition.log, self.heads.get(key)
        if log.log_start_offset >= log.local_log_start_offset:
            return None
        # A topic that is not tiered must have everything locally. While it is being disabled the
        # local start may be ahead.
        if not partition.tiering.reads_tier:
            settled = partition.tiering.state is TieringState.DISABLED
            return log.log_start_offset if settled else None
        if head is None:
            return log.log_start_offset
        first = max(log.log_start_offset, head.log_start_offset)
        if first >= log.local_log_start_offset:
            return None
        # The tier has to reach from the log start up to where the local log begins.
        begins = head.remote_log_start_offset
        if begins is None or begins > first:
            return first
        if head.highest_remote_offset + 1 < log.local_log_start_offset:
            return max(first, head.highest_remote_offset + 1)
        return None

    def _committed(
        self, process: BrokerProcess, partition: Partition, key: Key, ledger: Ledger, old: int
    ) -> None:
        """Invariants 3 and 1 as the high watermark advances: an offset that was ever below one has
        the same bytes as before; every member of the ISR that is persisted for this leader epoch
        has all below it (a replica whose loss is on the account excepted), and the ISR that the
        leader knows is not below its minimum."""
        high_watermark = partition.high_watermark
        if partition.leader_epoch < self._unclean.get(key, -1):
            return  # it does not know of the unclean election yet
        # Only what is new since the last step, which keeps a run linear.
        for batch in batches_in(partition, old, high_watermark):
            known = ledger.committed.get(batch.base_offset)
            if known is None:
                ledger.committed[batch.base_offset] = batch
            elif known.crc != batch.crc:
                self.fail(
                    "3",
                    f"{partition.tp}: the bytes at offset {batch.base_offset} were {known}, are "
                    f"{batch} on broker {process.node_id}",
                )
        row = self.rows.get(key)
        ledger.end = max(ledger.end, high_watermark)
        # A row of another epoch may have another ISR, which this leader does not know yet.
        if row is not None and row.leader_epoch == partition.leader_epoch:
            self._members_have(key, ledger, row, row.isr, process.node_id, high_watermark)

    def _min_isr(self, partition: Partition, ledger: Ledger) -> None:
        """Invariant 1: nothing is committed while the leader's ISR is below its minimum."""
        if len(partition.isr) < ledger.topic.min_isr:
            self.fail(
                "1",
                f"{partition.tp}: committed to {partition.high_watermark} with the ISR "
                f"{partition.isr}, min.insync.replicas is {ledger.topic.min_isr}",
            )

    def _members_have(
        self,
        key: Key,
        ledger: Ledger,
        row: PartitionRow,
        members: Iterable[int],
        leader: int,
        end: int,
    ) -> None:
        # The leader itself has all, and unknown ends prove nothing.
        for node in members:
            if node == leader:
                continue
            has = self._end_of(node, key)
            if has is None or has >= end or node in self.account.losers(key, has):
                continue
            self.fail(
                "1",
                f"{key[0]}-{key[1]}: committed to {end}, but broker {node}, in the persisted ISR "
                f"{row.isr} of leader epoch {row.leader_epoch} (partition epoch "
                f"{row.partition_epoch}), ends at {has}",
            )

    def _end_of(self, node: int, key: Key) -> int | None:
        """Return the log end of a running replica; None while it is unknown."""
        machine = self.cluster.machines.get(node)
        process = None if machine is None else machine.alive
        partition = None if process is None else process.partition(*key)
        if partition is None or partition.log.failure is not None:
            return None
        return int(partition.log.next_offset)

    def _prefix(self, partition: Partition, key: Key) -> None:
        """Invariants 3 to 5: what is in the tier is a prefix of the leader's log: where the log
        reaches it, the tier's last record is of the same leader epoch in both."""
        head, log = self.heads.get(key), partition.log
        if head is None or not partition.tiering.reads_tier or head.live_end is None:
            return
        offset, epoch = head.live_end
        # The tier's end must be in the local log to be compared.
        if log.local_log_start_offset <= offset < log.next_offset:
            own = log.epochs.epoch_for_offset(offset)
            row = self.rows.get(key)
            current = row is not None and row.leader_epoch == partition.leader_epoch
            if own >= 0 and own != epoch and current:
                self.fail(
                    "3",
                    f"{partition.tp}: offset {offset} is of leader epoch {epoch} in the tier and "
                    f"of {own} in the log of the leader, broker {partition.context.node_id}",
                )

    # ------------------------------------------------------------ clients

    def acknowledged(self, key: Key, base: int, crc: int, epoch_leader: int) -> None:
        """Invariant 1: what acks=all was answered for is committed, with these bytes."""
        ledger = self.ledgers[key]
        batch = ledger.committed.get(base)
        ledger.acknowledged += 1
        # Acknowledged but not in the ledger: wrong unless the offset is excused or the ledger has
        # forgotten it.
        if batch is None:
            if base >= ledger.end and not self._lost_excused(key, base):
                self.fail(
                    "1",
                    f"{key[0]}-{key[1]}: offset {base} was acknowledged by broker {epoch_leader}, "
                    f"but is not committed (committed to {ledger.end})",
                )
            return
        if batch.crc != crc:
            if not self._lost_excused(key, base):
                self.fail("3", f"{key[0]}-{key[1]}: other bytes at {base} than were acknowledged")
            return
        ledger.acknowledged_end = max(ledger.acknowledged_end, batch.last_offset + 1)

    def has_lost_tail(self, key: Key) -> bool:
        """Return whether the partition's log has lost a tail: an unclean election, or a loss that
        the account excuses."""
        return key in self._unclean or key in self._excused

    def _lost_excused(self, key: Key, offset: int) -> bool:
        ledger = self.ledgers[key]
        return self._unclean.get(key, -1) >= 0 or (
            len(self.account.losers(key, offset)) >= ledger.topic.min_isr
        )

    def consumed(self, key: Key, data: bytes, *, remote: bool, node: int, epoch: int) -> None:
        """Invariant 3: whatever a consumer reads is what was committed at that offset. Excused: a
        leader of before an unclean election that does not know of it yet."""
        ledger = self.ledgers[key]
        if epoch < self._unclean.get(key, -1):
            return
        # Both tiers are checked in the same way, as a client cannot tell them apart.
        for batch in batches_of(data):
            known = ledger.committed.get(batch.base_offset)
            if known is not None and known.crc != batch.crc:
                where = "the tier" if remote else "its log"
                self.fail(
                    "3",
                    f"{key[0]}-{key[1]}: broker {node} served other bytes at {batch.base_offset} "
                    f"from {where}: {batch} instead of {known}",
                )

    def deleted(self, key: Key, offset: int) -> None:
        """A deletion was acknowledged (low watermark reached)."""
        self.ledgers[key].deleted_to = max(self.ledgers[key].deleted_to, offset)

    def client_saw_start(self, key: Key, log_start: int, node: int, epoch: int) -> None:
        """Invariant 2 over leaders, as it can be held: the present leader never answers with a log
        start below one that a deletion was acknowledged for (the low watermark: all live replicas
        have it)."""
        ledger = self.ledgers[key]
        row = self.rows.get(key)
        present = row is not None and row.leader == node and row.leader_epoch == epoch
        if log_start < ledger.deleted_to and present and not ledger.topic.unclean:
            self.fail(
                "2",
                f"{key[0]}-{key[1]}: broker {node} shows log start {log_start}, deletion to "
                f"{ledger.deleted_to} was acknowledged",
            )

    # ------------------------------------------------------------ the API server

    def written(self, who: str, old: Json | None, new: Json) -> None:
        """Each change of an object."""
        kind = new["kind"]
        if kind == PARTITION_SLICE.kind:
            self._slice(who, old, new)
        elif kind in (TOPIC.kind, BROKER.kind, CLUSTER.kind) and old is not None:
            self._status(who, old, new)

    def _slice(self, who: str, old: Json | None, new: Json) -> None:
        name = new["metadata"]["name"]
        before, now = self._texts.get(name, set()), set(new["partitions"])
        if old is not None and new["controllerEpoch"] < old["controllerEpoch"]:
            self.fail("24", f"{who} wrote slice {name} under an older controller epoch")
        self._texts[name] = now
        # Only rows that this write changed, in a fixed order.
        for text in sorted(now - before):
            row = decode_row(text)
            if row.name:
                self._names[row.topic_id] = row.name
            topic = self._names.get(row.topic_id)
            if topic is not None:
                self._row(who, (topic, row.partition), row)

    def put_back(self, body: Json) -> None:
        """A slice comes from a backup: what is then written on it has to go beyond what was written
        after that."""
        self._texts[body["metadata"]["name"]] = set(body["partitions"])

    def _row(self, who: str, key: Key, row: PartitionRow) -> None:
        old = self.rows.get(key)
        self.rows[key] = row
        self.note(
            f"{who}: {key[0]}-{key[1]} leader {row.leader} epoch "
            f"{row.leader_epoch}/{row.partition_epoch} "
            f"ISR {row.isr} of {row.replicas}{' RECOVERING' if row.recovering else ''}"
            + (
                f", eligible {row.elr}, last known {row.last_known_elr}"
                if row.holders != row.isr
                else ""
            )
        )
        # Placement first, since it applies to new rows as well.
        self._placement(key, old, row)
        if old is None:
            return
        self._epochs(key, old, row)
        # RECOVERING marks an unclean election, which only the topic's configuration may allow.
        if row.recovering and not old.recovering:
            self._unclean[key] = row.leader_epoch
            if not self.topics[key[0]].unclean:
                self.fail("1", f"{key[0]}-{key[1]}: broker {row.leader} was elected uncleanly")
        ledger = self.ledgers[key]
        # A replica that joins the ISR must have all committed records (KIP-497).
        joined = set(row.isr) - set(old.isr)
        if joined and row.leader == old.leader and row.leader_epoch == old.leader_epoch:
            self._members_have(key, ledger, row, sorted(joined), row.leader, ledger.end)

    def _placement(self, key: Key, old: PartitionRow | None, row: PartitionRow) -> None:
        """Invariants 16 to 19: a placeholder is filled once, no broker twice, min ISR real replicas
        at creation, and only a member of the ISR that is a broker leads."""
        # These hold for every row, also for the first one.
        if len(set(row.replicas)) != len(row.replicas):
            self.fail("17", f"{key}: a broker stands twice in {row.replicas}")
        if row.leader != NO_LEADER and (row.leader < 0 or row.leader not in row.isr):
            self.fail("19", f"{key}: {row.leader} leads, ISR {row.isr}")
        if not set(row.isr) <= set(row.hosts):
            self.fail("19", f"{key}: ISR {row.isr} of {row.replicas}")
        if old is None:
            if len(row.hosts) < self.topics[key[0]].min_isr:
                self.fail("18", f"{key}: created with the replicas {row.replicas}")
            return
        # With more than three machines users move replicas, so replicas may change.
        if len(self.cluster.machines) > 3:
            wrong = self.cluster.moves.changed(old, row)
            if wrong:
                self.fail("moves", f"{key}: {wrong}")
            return
        # Negative ids are placeholders for replicas that had no broker yet. Only they may change,
        # and once.
        for was, now in zip(old.replicas, row.replicas, strict=False):
            if was < 0 <= now:
                if (key, was) in self._filled:
                    self.fail("16", f"{key}: placeholder {was} was filled before")
                self._filled.add((key, was))
            elif was != now:
                self.fail("16", f"{key}: replicas {old.replicas} became {row.replicas}")

    def _epochs(self, key: Key, old: PartitionRow, row: PartitionRow) -> None:
        """Invariant 24: of two operators none takes a row back; a change of leader has a new leader
        epoch, every change a new partition epoch."""
        if row.leader_epoch < old.leader_epoch or row.partition_epoch <= old.partition_epoch:
            self.fail("24", f"{key}: {old} was written over by {row}")
        if row.leader != old.leader and row.leader_epoch == old.leader_epoch:
            self.fail("24", f"{key}: another leader in the same epoch: {old}, {row}")
        if old.manifest and not row.manifest:
            self.fail("4", f"{key}: the slice forgot the manifest")

    def _status(self, who: str, old: Json, new: Json) -> None:
        """Invariants 22 (observedGeneration) and 7 (tiering)."""
        was, now = old.get("status") or {}, new.get("status") or {}
        if now.get("observedGeneration", 0) < was.get("observedGeneration", 0):
            self.fail("22", f"{who}: observedGeneration of {new['kind']} went back")
        if was.get("tiering") != now.get("tiering"):
            self._tiering(was.get("tiering"), now.get("tiering") or {})

    def _tiering(self, was: Json | None, now: Json) -> None:
        """Invariant 7: Enabled, Disabling (a new epoch), Disabled, and only then something else;
        the policy of a disablement under way never changes."""
        # No transition: at most the policy could have changed, which it must not while disabling.
        if was is None or (was["state"], was["epoch"]) == (now["state"], now["epoch"]):
            if was is not None and was["state"] == "Disabling" and was["policy"] != now["policy"]:
                self.fail("7", f"the policy changed while Disabling: {was}, {now}")
            return
        self.note(
            f"tiering {was['state']} ({was['epoch']}) becomes {now['state']} ({now['epoch']})"
        )
        self._tiered_epoch = now["epoch"]
        self.remote_is_deleted = False
        if now["state"] == "Disabling":
            self.policies.add(_policy(now))
        # Transitions with the difference of their epochs: each disablement has an epoch of its own.
        allowed = {
            ("Enabled", "Disabling", 1),
            ("Disabling", "Disabled", 0),
            ("Disabled", "Enabled", 0),
            ("Disabled", "Disabling", 1),
        }
        if (was["state"], now["state"], now["epoch"] - was["epoch"]) not in allowed:
            self.fail("7", f"tiering went from {was} to {now}")
        # The disablement is acknowledged: from here on no process may write or plan under an older
        # epoch.
        if now["state"] == "Disabled":
            self.remote_is_deleted = _policy(now) is DisablePolicy.DELETE
            self._acknowledged_disablement(now["epoch"])

    def _acknowledged_disablement(self, epoch: int) -> None:
        """Invariants 8 and 9: a disablement is acknowledged once the head of every partition is
        claimed under its epoch: from then on no older copier adds to it, no older plan is made, and
        after Delete no plan names an object."""
        for key, names in self._live_keys.items():
            if self.remote_is_deleted and names:
                self.fail(
                    "8", f"the Delete was acknowledged, but readers of {key} plan {min(names)}"
                )
        for head in self.heads.values():
            if head.tiering.epoch < epoch:
                self.fail(
                    "9",
                    f"disabled under epoch {epoch}, but {head.name} is claimed under {head.claim}",
                )

    def told(self, request: control.PartitionStatesRequest) -> None:
        """Invariant 24, persist before acting: brokers receive only stored rows."""
        for topic in request.topics:
            # An epoch that is not stored could be given out again after a failover.
            for state in topic.partitions:
                row = self.rows.get((topic.name, state.partition))
                epochs = (state.leader_epoch, state.partition_epoch)
                if row is None or epochs > (row.leader_epoch, row.partition_epoch):
                    self.fail("24", f"sent {topic.name}: {state}, stored is {row}")

    # ------------------------------------------------------------ the tier

    def stored(self, who: str, key: str, before: bytes | None, now: bytes | None) -> None:
        """Each change of an object of the tier."""
        if key.startswith("heads/") and now is not None:
            self._head(who, decode_head(now, key))
        elif now is None and key.startswith("data/"):
            self._deleted(who, key)

    def _deleted(self, who: str, key: str) -> None:
        """Invariants 4 and 9: an object that a live entry names is not deleted."""
        for where, keys in self._live_keys.items():
            if key in keys:
                self.fail("4", f"{who} deleted {key}, which answers for {where}")

    def _head(self, who: str, head: Head) -> None:
        key = (head.topic, head.partition)
        old = self.heads.get(key)
        self.heads[key] = head
        if old is not None:
            self._claims(who, old, head)
        # From all heads so far: a head that went back receives entries again that pages contained.
        known = self._entries
        for entry in head.entries:
            if known.get(entry.segment_id) != entry:
                self._entry(who, key, head, known.get(entry.segment_id), entry)
                known[entry.segment_id] = entry
        self._line(key, head)

    def _claims(self, who: str, old: Head, head: Head) -> None:
        """Invariant 6: no claim goes back, and under a claim only its holder writes. Invariant 2:
        the tier's log start never goes back."""
        if head.claim.is_older_than(old.claim):
            self.fail("6", f"{who} claimed {head.name} under {head.claim}, after {old.claim}")
        if head.claim == old.claim and head.deleted_at_ms is None and who != f"b{old.broker_id}":
            self.fail("6", f"{who} wrote {head.name}, which broker {old.broker_id} has claimed")
        if head.log_start_offset < old.log_start_offset or head.floor_epoch < old.floor_epoch:
            self.fail("2", f"{head.name}: the tier's log start or floor went back")
        if head.claim != old.claim:
            self.note(f"{who} claims {head.name}: {head.claim}, {head.tiering.state.name}")

    def _entry(
        self, who: str, key: Key, head: Head, old: SegmentEntry | None, entry: SegmentEntry
    ) -> None:
        """Invariants 6 and 9 (a new entry is of the present claim, and of an enabled topic), 11
        (its custom metadata is what the storage manager gave), 3 (its bytes are what was
        committed)."""
        # New entries belong to the claim under which they were written.
        if old is None and (entry.leader_epoch, entry.tiered_epoch) != (
            head.leader_epoch,
            head.tiering.epoch,
        ):
            self.fail("6", f"{who}: {entry.key} has other epochs than the claim {head.claim}")
        if old is None and head.tiering.state is not TieringState.ENABLED:
            self.fail("9", f"{who} began to copy {entry.key} while {head.tiering.state.name}")
        # One below the floor stands only in a head that went back, and was deleted since.
        over = head.is_below_floor(entry.end_offset_inclusive, entry.tiered_epoch)
        if entry.state is SegmentState.COPY_FINISHED and not over:
            self.note(
                f"{who} copied {key[0]}-{key[1]} {entry.start_offset}..{entry.end_offset_inclusive}"
            )
            if self.custom.get(entry.segment_id, b"?") != entry.custom_metadata:
                self.fail("11", f"{entry.key}: custom metadata {entry.custom_metadata!r}")
            self._copied(key, entry)

    def _copied(self, key: Key, entry: SegmentEntry) -> None:
        data, ledger = self.cluster.storage.objects.get(entry.log_key), self.ledgers[key]
        if data is None:
            self.fail("4", f"{entry.log_key} is live and not there")
            return
        # The copied bytes are compared with the ledger. Batches below the entry's first offset
        # answer for nothing.
        for batch in batches_of(data):
            known = ledger.committed.get(batch.base_offset)
            if (
                known is not None
                and known.crc != batch.crc
                and batch.last_offset >= entry.from_offset
            ):
                self.fail("3", f"{entry.log_key} holds {batch} where {known} was committed")
            new = known is None and batch.base_offset >= ledger.end and not ledger.topic.unclean
            if new and not self._lost_excused(key, batch.base_offset):
                self.fail("3", f"{entry.log_key} holds {batch}, which was never committed")

    def _line(self, key: Key, head: Head) -> None:
        """Invariant 5: the live segments answer for each offset from the remote log start to the
        remote log end, each for its own, without holes. Invariant 4: their objects are there."""
        objects = self.cluster.storage.objects
        # Live segments from the pages and the head, in the order of offsets.
        live = list(queries.live_segments(head, _Pages(head, objects)))
        end = None
        for entry in live:
            if end is not None and entry.from_offset != end + 1:
                self.fail(
                    "5", f"{head.name}: {entry.key} answers from {entry.from_offset}, not {end + 1}"
                )
            end = entry.end_offset_inclusive
            if entry.log_key not in objects or entry.aux_key not in objects:
                self.fail("4", f"{head.name}: {entry.key} is live, its objects are not there")
        if end is not None and end != head.highest_remote_offset:
            self.fail("5", f"{head.name}: the line ends at {end}, not {head.highest_remote_offset}")
        self._live_keys[key] = frozenset(
            name for entry in live for name in (entry.log_key, entry.aux_key)
        )

    # ------------------------------------------------------------ the end

    def settled(self, key: Key) -> str:
        """Why a partition has not settled yet; empty once it has: it has a leader, its ISR is full
        as far as brokers are there, the logs are equal, nothing is proposed."""
        row = self.rows.get(key)
        if row is None:
            return f"{key} has no row"
        machines = self.cluster.machines
        if not row.holders and any(machines[node].disks_lost for node in row.hosts):
            return ""  # every copy was lost with its disk: it waits for a person
        if row.leader == NO_LEADER or row.recovering:
            return f"{key} has no leader: {row}"
        # Placeholders count only when there are enough brokers for them.
        if set(row.isr) != set(row.hosts) or (
            row.placeholders and len(self.cluster.machines) >= len(row.replicas)
        ):
            return f"{key}: ISR {row.isr} of {row.replicas}"
        replicas = [self.cluster.machines[node].alive for node in row.hosts]
        found = [None if replica is None else replica.partition(*key) for replica in replicas]
        logs = [partition for partition in found if partition is not None]
        if len(logs) != len(found):
            return f"{key}: a replica is not there"
        leader = next(p for p in logs if p.context.node_id == row.leader)
        # Replicas are equal when their bounds are. Bytes are compared afterwards.
        ends = {(p.next_offset, self._start_of(key, p, leader), p.high_watermark) for p in logs}
        if len(ends) != 1:
            return f"{key}: end, log start and high watermark differ: {sorted(ends)}"
        if leader.check_leader().value:
            return f"{key}: the leader does not answer as such yet"
        if leader.leader is None or leader.leader.pending is not None:
            return f"{key}: an ISR is still proposed"
        if leader.high_watermark != leader.next_offset:
            return f"{key}: committed to {leader.high_watermark} of {leader.next_offset}"
        return next(filter(None, (self.deletions.left_below(key, log) for log in logs)), "")

    def _start_of(self, key: Key, partition: Partition, leader: Partition) -> int:
        """A follower never lowers its log start, as in Kafka: after an unclean election, or where
        the best of those that lost their tails leads, that of the leader may be an earlier one."""
        start = int(partition.log_start_offset)
        return min(start, leader.log_start_offset) if self.has_lost_tail(key) else start

    def readable(self, key: Key) -> None:
        """Invariant 4, at the end: the leader has each offset from its log start on, or the
        tier."""
        row = self.rows.get(key)
        machine = None if row is None else self.cluster.machines.get(row.leader)
        process = None if machine is None else machine.alive
        partition = None if process is None else process.partition(*key)
        gap = None if partition is None else self._gap(partition, key)
        if partition is not None and gap is not None:
            self.fail(
                "4",
                f"{partition.tp}: broker {partition.context.node_id} leads with log start "
                f"{partition.log_start_offset}, local {partition.log.local_log_start_offset}, "
                f"{self._tier_text(key)}offset {gap} is nowhere",
            )

    def left_behind(self) -> str:
        """Invariant 8, in the end: after a disablement with Delete no data object is left (those
        excepted that the store itself made late: only a sweeper finds them)."""
        for head in self.heads.values():
            # Only topics whose last disablement deleted their data.
            deleted = Tiering(TieringState.DISABLED, self._tiered_epoch, DisablePolicy.DELETE)
            if head.tiering == deleted:
                storage = self.cluster.storage
                left = [key for key in storage.objects if key.startswith("data/")]
                left = [key for key in left if key not in storage.late_puts]
                return f"{left[0]} is left after Delete" if left else ""
        return ""

    def orphans(self) -> str:
        """Invariant 10, in the end: brokers' sweeps have left nothing that no head names."""
        report = Sweeper(
            self.cluster.storage.tier("checks"), now_ms=self.world.wall_ms, delay_ms=0
        ).run()
        strange = [*report.examples, *report.unknown, *report.troubles]
        return f"nothing names {strange[0]}" if strange else ""

    def not_settled(self, why: str, after_s: float) -> None:
        """The end of the trouble did not bring what it should; invariant 10, if only orphans are
        left."""
        invariant = "10" if why == self.orphans() else "convergence"
        self.fail(invariant, f"not settled after {after_s:.0f} s: {why}")

    def equal_logs(self, key: Key) -> None:
        """Invariant 3, at the end: all replicas hold the same bytes where they hold any."""
        row = self.rows[key]
        if not row.isr:
            return
        held: dict[int, SimulatedBatch] = {}
        for node in row.hosts:
            partition = self.cluster.machines[node].alive.partition(*key)
            for batch in batches_in(partition, 0, partition.next_offset):
                known = held.setdefault(batch.base_offset, batch)
                if known.crc != batch.crc:
                    self.fail("3", f"{key}: replicas hold {known} and {batch}")


def _policy(tiering: Json) -> DisablePolicy:
    return DisablePolicy[tiering["policy"].upper()]


class _Pages:
    """Sealed pages in the storage."""

    def __init__(self, head: Head, objects: dict[str, bytes]) -> None:
        self._head, self._objects = head, objects

    def __getitem__(self, name: str, /) -> Any:
        key = page_key(self._head.topic_id, self._head.partition, name)
        return decode_page(self._objects[key], key)
