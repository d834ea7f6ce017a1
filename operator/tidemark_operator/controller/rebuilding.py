"""Rebuilding of lost or outdated rows from the reports of brokers.

API data may come from a backup, or a part of it may be erased. One of three signs reveals that: a
broker has obeyed a later controller than the Cluster's status knows of, a report of a replica is
ahead of its row, or placed partitions are in no slice. The first two put every row in doubt
(``ControllerState.unverified_rows``): it is neither changed nor sent to brokers. The Cluster's
status records the rebuilding before anything else is done, and until all of it is settled.

A partition in doubt, or lost, is rebuilt from the highest (leader epoch, partition epoch) that its
row and the reports name, once every replica of that state has reported and every live broker has.
If such a replica is missing on its broker, a later state may have removed it, and all
Brokers must report. A replica that only an older report names need not report: if any leader of a
later state had existed, one of the reporting replicas would know that state.

A rebuilding does not wait for a broker that is down if the others prove what it could report
(:class:`_Proof`), once all live brokers have had time to report. A replica is *whole* if it has
lost nothing since its broker received its state. Whole replicas prove it in one of two ways:

* Fewer brokers than min.insync.replicas could have been in sync without any of the whole replicas,
  and min.insync.replicas is more than half of the replicas. Whatever ISR a later state had, a whole
  replica was in it or enough copies were missing to commit, so the whole replica whose log reaches
  furthest has all committed records. A known state with fewer in sync, and no eligible leader,
  shows that the minimum was another one.
* More than half of the highest state's ISR is whole and received exactly that state. A later ISR
  without them would require that all of them had failed at once before the data was restored.

A person gives up other missing brokers: ``tidemark.dev/rebuild-without`` names brokers and this
rebuilding.

A rebuilt row has no leader: any replica with all committed records may have lost a tail meanwhile,
so all of them report their log ends first (:mod:`eligible_leaders`). Its epochs are raised by
:data:`~tidemark.leader_epochs.GENERATION`. Brokers keep replicas that it does not name.
"""

import dataclasses
import re
import uuid
from collections.abc import Collection, Iterable, Mapping

from tidemark.annotations import REBUILD_WITHOUT
from tidemark.ids import id_text
from tidemark.leader_epochs import GENERATION
from tidemark.message_text import count, numbered, numbers, them
from tidemark_operator.controller import accepted_losses
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event, warning
from tidemark_operator.controller.state.model import (
    NO_LEADER,
    Acceptance,
    PartitionRow,
    RowKey,
    TopicInfo,
)
from tidemark_operator.controller.state.replica_state_reports import EPOCH_MAX, ReplicaStateReports

#: Epochs by which a report may be ahead of a row; beyond that it is from another history.
AHEAD_MAX = 16 * GENERATION
#: Highest epoch that is accepted without a row to compare it with.
UNKNOWN_MAX = 2**30
_WITHOUT = re.compile(r"([0-9]{1,9}(?:,[0-9]{1,9})*)@(\S{1,64})")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RebuildingWait:
    """Partitions of a topic that wait, and the brokers they wait for.

    ``unclear`` brokers have a replica and cannot report its state, or report an unbelievable one.
    """

    partitions: tuple[int, ...]
    brokers: tuple[int, ...]
    unclear: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Return the brokers that a person would have to give up."""
        return tuple(sorted({*self.brokers, *self.unclear}))


# ---------------------------------------------------------------- the signs


def reveals(
    state: ControllerState, reports: ReplicaStateReports, node_id: int, *, is_admitted: bool = False
) -> bool:
    """Return whether a broker's report shows that seemingly current rows are outdated.

    That is so if PartitionSlices were restored from an old backup. Call it before the broker's
    registration changes any row. If this controller has not sent the broker anything yet, its
    report is compared with each row as it was at the start of the term, because later decisions may
    have passed it. A broker that ``is_admitted`` was checked before: what else it knows comes from
    this controller.
    """
    has_snapshot = is_admitted or state.acknowledgements.has_snapshot(state.brokers.get(node_id))
    return any(
        _shows_newer_state(state, reports.of(key)[node_id], has_snapshot=has_snapshot)
        for key in reports.keys_on(node_id)
    )


def _shows_newer_state(state: ControllerState, report: PartitionRow, *, has_snapshot: bool) -> bool:
    key, row = report.key, state.row(report.key)
    if row is None or key in state.unverified_rows or state.tombstones_of(key[0]):
        return False
    if not has_snapshot:
        row = state.at_first.get(key, row)
    # Two leaders in one leader epoch come from two histories, whatever followed.
    contradicts = report.leader_epoch == row.leader_epoch and report.leader != row.leader
    return _is_plausible(report, row) and (_epochs(report) > _epochs(row) or contradicts)


def _epochs(row: PartitionRow) -> tuple[int, int]:
    return row.leader_epoch, row.partition_epoch


def _is_plausible(report: PartitionRow, row: PartitionRow | None) -> bool:
    """Return whether a report's epochs are plausible.

    Without a limit one corrupt report could use up the whole range of epochs.
    """
    if report.leader_epoch < 0:
        return False
    limits = (UNKNOWN_MAX, UNKNOWN_MAX)
    if row is not None:
        limits = (row.leader_epoch + AHEAD_MAX, row.partition_epoch + AHEAD_MAX)
    return report.leader_epoch <= limits[0] and report.partition_epoch <= limits[1]


def lost(state: ControllerState, topic: TopicInfo) -> list[int]:
    """Return the placed partitions that are in no slice.

    Absence is not evidence: they are not created again as new ones.
    """
    if state.tombstones_of(topic.id):
        return []
    # A Topic without an id has to be adopted first (:mod:`adoption`).
    if not topic.partitions_placed and topic.topic_id is None:
        return []
    rows = state.rows_of(topic.id)
    return [number for number in range(state.partitions_of(topic)) if number not in rows]


def unsettled(state: ControllerState, topic: TopicInfo) -> list[int]:
    """Return the partitions of a topic to be rebuilt."""
    missing = lost(state, topic)
    if not state.unverified_rows:
        return missing
    doubted = (
        part for part in state.rows_of(topic.id) if (topic.id, part) in state.unverified_rows
    )
    return sorted({*missing, *doubted})


def only_reported(state: ControllerState, node_id: int) -> list[RowKey]:
    """Return a broker's replicas of lost partitions that are not rebuilt yet.

    No row names the broker, so its copy matters even before the Cluster's status records a
    rebuilding. Queried only for brokers that leave, because it looks at all replicas of one.
    """
    ids = {topic_id for topic_id, _ in state.replica_reports.keys_on(node_id)}
    topics = (state.topics.by_id(topic_id) for topic_id in sorted(ids))
    served = (topic for topic in topics if topic is not None and topic.deletion_ms is None)
    keys = ((topic.id, part) for topic in served for part in lost(state, topic))
    return [key for key in keys if node_id in state.replica_reports.of(key)]


def is_under_way(draft: Draft, topic: TopicInfo) -> bool:
    """Return whether rows of a topic are still in doubt, so that its replicas' hosts are not
    known.
    """
    return bool(draft.state.unverified_rows) and any(
        draft.is_in_doubt((topic.id, part)) for part in draft.rows_of(topic.id)
    )


def is_done(state: ControllerState) -> bool:
    """Return whether a rebuilding has nothing left to do or to wait for."""
    if silent(state) or state.unverified_rows:
        return False
    return not any(lost(state, topic) for topic in _served(state))


def silent(state: ControllerState) -> tuple[int, ...]:
    """Return the brokers that may have replicas and have not reported.

    A ``Broker`` that never registered, and that neither a row nor a report names, is not one of
    them.
    """
    return tuple(sorted(_silent(state, _expected(state))))


def _expected(state: ControllerState) -> list[int]:
    return [
        node_id
        for node_id, broker in state.brokers.items()
        if (broker.registered and not broker.is_reader)
        or state.partitions.replica_count(node_id)
        or state.replica_reports.names(node_id)
    ]


def waiting_topics(state: ControllerState) -> list[str]:
    """Return the names of all topics with partitions to rebuild, including topics without a Topic
    object."""
    doubted = {topic_id for topic_id, _ in state.unverified_rows}
    names = {topic.name for topic in _served(state) if topic.id in doubted or lost(state, topic)}
    for topic_id in doubted:
        topic = state.topics.by_id(topic_id)
        if topic is None:
            names.add(_unserved(state, topic_id).name)
        elif topic.deletion_ms is not None:
            names.add(topic.name)
    return sorted(names)


def _served(state: ControllerState) -> Iterable[TopicInfo]:
    return (topic for topic in state.topics.values() if topic.deletion_ms is None)


# ---------------------------------------------------------------- who is waited for


def unreported_brokers(state: ControllerState, topic: TopicInfo) -> tuple[int, ...]:
    """Return the brokers that may have partitions about to be created.

    While slices are known to be lost, a topic that is in none of them may be on any broker.
    """
    if state.cluster.rebuilding is None:
        return ()
    return tuple(sorted(set(silent(state)) - given_up_brokers(state, topic)))


def _silent(state: ControllerState, node_ids: Iterable[int]) -> set[int]:
    return {node_id for node_id in node_ids if not state.replica_reports.has_reported(node_id)}


def given_up_brokers(state: ControllerState, topic: TopicInfo) -> frozenset[int]:
    """Return the brokers that a person gives up for this rebuilding, once that is recorded."""
    annotation = topic.annotations.get(REBUILD_WITHOUT, "")
    if not accepted_losses.is_recorded(topic.status, REBUILD_WITHOUT, annotation):
        return frozenset()
    return _named(state, topic)


def _named(state: ControllerState, topic: TopicInfo) -> frozenset[int]:
    """Return the brokers that the annotation names; none if it is about another rebuilding."""
    found = _WITHOUT.fullmatch(topic.annotations.get(REBUILD_WITHOUT, ""))
    rebuilt = state.cluster.rebuilding
    # The time of the rebuilding ties the consent to it: an old annotation gives up nothing.
    if found is None or rebuilt is None or found[2] != rebuilt.since:
        return frozenset()
    return frozenset(map(int, found[1].split(",")))


def accepted(state: ControllerState, topic: TopicInfo) -> tuple[Acceptance, ...]:
    """Return the consent to record now, before it is acted on."""
    annotation = topic.annotations.get(REBUILD_WITHOUT, "")
    named = _named(state, topic)
    if not named or accepted_losses.is_recorded(topic.status, REBUILD_WITHOUT, annotation):
        return ()
    effect = f"rebuilt without {numbered('broker', named)}. Data that only they have is lost"
    return (Acceptance(REBUILD_WITHOUT, annotation, effect),)


def text(state: ControllerState, topic: TopicInfo, waiting: RebuildingWait) -> str:
    """Return the condition message of a topic whose lost or outdated rows wait to be rebuilt.

    ``waiting``: the partitions, and the brokers that they wait for.
    """
    summary = (
        "PartitionSlices are lost or outdated. "
        f"{count(len(waiting.partitions), 'partition')} "
        f"({numbers(waiting.partitions)}) of topic {topic.name} will be rebuilt "
        "from broker reports: "
    )
    parts = []
    # First what a person can start, then what only another report can resolve.
    if waiting.brokers:
        parts.append(
            f"{numbered('broker', waiting.brokers, 'has')} not reported. "
            f"Start {them(waiting.brokers)}"
        )
    if waiting.unclear:
        parts.append(
            f"{numbered('broker', waiting.unclear)} cannot report the state of their replicas"
        )
    return summary + "; ".join(parts) + _offer(state, topic, waiting.all)


def unreported_text(state: ControllerState, topic: TopicInfo, brokers: Collection[int]) -> str:
    """Return the condition message of a topic that cannot be created yet."""
    return (
        f"PartitionSlices are lost or outdated, and {numbered('broker', brokers, 'has')} not "
        f"reported, but may have topic {topic.name}. Start {them(brokers)}, or "
        f"delete each Broker that never returns{_offer(state, topic, brokers)}"
    )


def _offer(state: ControllerState, topic: TopicInfo, brokers: Collection[int]) -> str:
    rebuilt = state.cluster.rebuilding
    if rebuilt is None or not brokers:
        return ""
    annotation = topic.annotations.get(REBUILD_WITHOUT, "")
    named = given_up_brokers(state, topic)
    refused = ""
    if annotation and not named:
        refused = f". {REBUILD_WITHOUT} names {annotation}, which does not match"
    value = ",".join(map(str, sorted({*brokers, *named})))
    return (
        f"{refused}. To give up data that only they have, annotate this Topic "
        f"with {REBUILD_WITHOUT}: {value}@{rebuilt.since}"
    )


# ---------------------------------------------------------------- rebuilding


def settle(draft: Draft, topic: TopicInfo) -> RebuildingWait | None:
    """Rebuild the lost or outdated rows of a topic from brokers' reports, as far as possible.

    Returns what the remaining partitions wait for, None if nothing remains.
    """
    partitions, brokers, unclear = set[int](), set[int](), set[int]()
    settled = []
    # Each partition by itself: one that waits must not hold back the others of its topic.
    for partition in unsettled(draft.state, topic):
        found = _Rebuilding(draft, topic, partition)
        if found.waits:
            partitions.add(partition)
            brokers |= found.silent
            unclear |= found.unclear
        else:
            settled.append(partition)
            draft.settle_row(found.row())
    if settled:
        draft.emit(_rebuilt_event(topic, settled))
    # The message names every broker that any partition waits for.
    if not partitions:
        return None
    return RebuildingWait(
        partitions=tuple(sorted(partitions)),
        brokers=tuple(sorted(brokers)),
        unclear=tuple(sorted(unclear)),
    )


def settle_unserved(draft: Draft) -> None:
    """Rebuild rows of topics without a Topic object, which may be adopted later.

    No reconciler of a Topic settles them.
    """
    state = draft.state
    for topic_id, partition in sorted(state.unverified_rows):
        if state.topics.by_id(topic_id) is None:
            found = _Rebuilding(draft, _unserved(state, topic_id), partition)
            if not found.waits:
                draft.settle_row(found.row())


def has_unserved(state: ControllerState) -> bool:
    """Return whether rows of topics without a Topic object are in doubt."""
    return any(state.topics.by_id(topic_id) is None for topic_id, _ in state.unverified_rows)


def _unserved(state: ControllerState, topic_id: uuid.UUID) -> TopicInfo:
    left = {orphan.topic_id: orphan.name for orphan in state.cluster.orphans}
    name = left.get(topic_id) or state.row_name(topic_id) or state.replica_reports.name(topic_id)
    return TopicInfo(
        key=state.cluster.key,
        uid=topic_id,
        name=name or id_text(topic_id),
        generation=0,
        partitions=1,
        replication_factor=1,
        created_ms=0,
        topic_id=topic_id,
    )


def _rebuilt_event(topic: TopicInfo, settled: Collection[int]) -> Event:
    what = f"{count(len(settled), 'partition')} ({numbers(settled)})"
    return warning("Topic", topic.key, "PartitionsRebuilt", f"{what} rebuilt from broker reports")


class _Rebuilding:
    """Rebuilding of one partition: the known states, the brokers it waits for, and the new row."""

    def __init__(self, draft: Draft, topic: TopicInfo, partition: int) -> None:
        """Evaluate the brokers' reports about one partition.

        Afterwards :attr:`silent` and :attr:`unclear` say which brokers the rebuilding waits for;
        without any, :meth:`row` is the rebuilt row.
        """
        self._draft, self._topic, self._partition = draft, topic, partition
        state, key = draft.state, (topic.id, partition)
        #: The stored row, None if it is lost; it may be outdated.
        self._row = draft.row(key)
        #: By node id: the row that each broker reports for its replica.
        self._hosting = state.replica_reports.of(key)
        # A broker whose report is implausible has a replica in an unknown state: it counts as
        # unclear.
        # Brokers whose data a person gives up are not waited for.
        given_up = given_up_brokers(state, topic)
        plausible = {
            node_id: report
            for node_id, report in self._hosting.items()
            if _is_plausible(report, self._row)
        }
        #: Brokers that cannot report the state of their replica.
        self.unclear = set(self._hosting).difference(plausible, given_up)
        known = [*plausible.values(), *(() if self._row is None else (self._row,))]
        # The newest row: by epochs, then by fewer replicas. A leader completes a reassignment
        # within one epoch, and then reports fewer.
        self._best: PartitionRow | None = max(
            known, key=lambda row: (*_epochs(row), -len(row.hosts)), default=None
        )
        #: Highest (leader epoch, partition epoch) of all known rows.
        self._highest = _highest(known)
        # Live brokers report within seconds, so they are always waited for.
        live = {broker.node_id for broker in state.live_brokers()}
        #: Brokers that have not reported, and may have a replica or newer rows.
        self.silent = _silent(state, {*live, *self._needed(state)}) - given_up
        #: Replicas that may lead because they prove what silent brokers could report.
        self._candidates: frozenset[int] = frozenset()
        # A proof is tried only when all that is missing is down, because a report is better than a
        # proof.
        is_down = state.had_time_to_report and not _silent(state, live) - given_up
        if self.silent and self._best is not None and is_down:
            proof = _Proof(draft, self._best, self._hosting, given_up)
            self._candidates = proof.candidates(is_complete=not self._is_replica_missing())
            self.silent = set() if self._candidates else self.silent

    @property
    def waits(self) -> bool:
        return bool(self.silent or self.unclear)

    def _needed(self, state: ControllerState) -> set[int]:
        hosts = () if self._best is None else self._best.hosts
        if self._best is None or self._is_replica_missing():
            others = (id_ for id_, broker in state.brokers.items() if not broker.is_reader)
            return {*others, *hosts}
        return set(hosts)

    def _is_replica_missing(self) -> bool:
        """Return whether a reporting broker lacks its replica: removed, lost, or never created."""
        hosts, reports = (
            () if self._best is None else self._best.hosts,
            self._draft.state.replica_reports,
        )
        return any(reports.has_reported(host) and host not in self._hosting for host in hosts)

    def _are_log_directories_unchanged(self) -> bool:
        """Return whether every broker of the best state still has the log directory of that time.

        Otherwise its replica may be in the former one.
        """
        state, hosts = self._draft.state, () if self._best is None else self._best.hosts
        index = state.slice_index((self._topic.id, self._partition))
        present = ((host, state.brokers.get(host)) for host in hosts)
        return all(
            broker is not None and state.directory_of(host, index) in (None, broker.directory_id)
            for host, broker in present
        )

    def row(self) -> PartitionRow:
        """Return the rebuilt row. Call it only if the partition does not wait.

        Without a leader, unless the partition never had records: an election compares log ends
        first.
        """
        name = self._topic.name if self._partition == 0 else ""
        if self._best is None:
            return self._row_without_copy(name)
        if not self._hosting and self._highest == (0, 0) and self._are_log_directories_unchanged():
            # No broker ever received the row, so it can start as it was created.
            return dataclasses.replace(self._best, partition_epoch=1)
        # Only replicas that exist and may have all committed records are candidates for leadership.
        holders = self._candidates or set(self._best.holders).intersection(self._hosting)
        leader_epoch, partition_epoch = self._highest
        # No leader and no ISR: an election compares the log ends of the candidates first.
        return dataclasses.replace(
            self._best,
            leader=NO_LEADER,
            isr=(),
            elr=(),
            last_known_elr=tuple(host for host in self._best.hosts if host in holders),
            leader_epoch=min(leader_epoch, EPOCH_MAX) + GENERATION,
            partition_epoch=min(partition_epoch, EPOCH_MAX) + GENERATION,
            manifest=any(row.manifest for row in (self._best, *self._hosting.values())),
            name=name,
        )

    def _row_without_copy(self, name: str) -> PartitionRow:
        """Return the row of a partition of which no broker has a copy.

        Its replicas are placeholders, and a person decides how it continues
        (:mod:`accepted_losses`). Its epochs are above those of the topic's other partitions, so
        that no earlier epoch is reused.
        """
        others = self._draft.rows_of(self._topic.id).values()
        leader_epoch = max((row.leader_epoch for row in others), default=0)
        return PartitionRow(
            topic_id=self._topic.id,
            partition=self._partition,
            replicas=tuple(-1 - place for place in range(self._topic.replication_factor)),
            isr=(),
            leader_epoch=min(leader_epoch, EPOCH_MAX) + GENERATION,
            partition_epoch=GENERATION,
            name=name,
        )


class _Proof:
    """Proof, from the replicas that have reported, of what brokers that are down could report."""

    def __init__(
        self,
        draft: Draft,
        best: PartitionRow,
        hosting: Mapping[int, PartitionRow],
        given_up: Collection[int],
    ) -> None:
        """Collect the replicas that certainly have a complete log, and those that might know more.

        ``best``: the newest known row. ``hosting``: reported rows by node id. ``given_up``: brokers
        that are not waited for.
        """
        # Replicas that may have lost the end of their log in a crash.
        reports, torn = draft.state.replica_reports, set(best.last_known_elr)
        self._best, self._hosting = best, hosting
        self._min_isr = draft.state.min_isr(best)
        #: Replicas that reported a complete log.
        self._intact = frozenset(
            node_id
            for node_id in best.hosts
            if node_id in hosting and node_id not in torn and reports.is_intact(best.key, node_id)
        )
        unreported = _silent(draft.state, {*_expected(draft.state), *best.hosts})
        #: Brokers that might have committed records or a newer ISR without this being known.
        self._unproven = (unreported | set(best.hosts)).difference(self._intact, given_up)

    def candidates(self, *, is_complete: bool) -> frozenset[int]:
        """Return the replicas of which the one with the longest log has all committed records.

        The argument is a quorum: every commit needed ``min.insync.replicas`` copies, and fewer
        brokers than that are unaccounted for. Empty without such a proof. ``is_complete``: every
        replica of the newest row has reported.
        """
        # min.insync.replicas is from the Topic, which may have changed. An ISR below it shows that
        # it was lower, unless an intact replica outside the ISR is eligible.
        fits = len(self._best.isr) >= self._min_isr or self._intact.intersection(self._best.elr)
        # First proof: too few brokers are unaccounted for to have committed anything alone.
        is_enough = len(self._unproven) < self._min_isr
        if fits and is_enough and 2 * self._min_isr > len(self._best.hosts):
            return self._intact
        # Second proof: a majority of the newest ISR is intact and reports exactly that row.
        members = self._intact.intersection(self._best.isr)
        agree = all(_epochs(self._hosting[member]) == _epochs(self._best) for member in members)
        if is_complete and agree and 2 * len(members) > len(self._best.isr):
            return members
        return frozenset()


def _highest(rows: Collection[PartitionRow]) -> tuple[int, int]:
    return (
        max((row.leader_epoch for row in rows), default=0),
        max((row.partition_epoch for row in rows), default=0),
    )
