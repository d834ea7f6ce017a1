"""A history as what its checks ask for: writes, transactions and their outcomes, reads, groups'
offsets, and which record lies where.

One pass over the events. Where nothing says how something ended, it is of unknown outcome.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass, field

from tests.histories.events import FAIL, INVOKE, OK, HistoryEvent
from tests.histories.levels import READ_COMMITTED, SENT_ANEW

COMMITTED, ABORTED, UNKNOWN = "committed", "aborted", "unknown"
#: Group, place and offset of the record that another one was made of.
Origin = tuple[str, str, int]
#: When something ended that has no end.
NEVER = math.inf


@dataclass(slots=True)
class Write:
    """One record that was to be written. ``offset`` is None unless it was acknowledged with one: a
    batch that comes again may be acknowledged without."""

    id: int
    process: str
    place: str
    value: str
    level: str
    txn: str
    origin: Origin | None
    status: str = UNKNOWN
    offset: int | None = None


@dataclass(slots=True)
class Txn:
    """One transaction.

    ``committing``: time of the first commit request, None if there was none; ``open_commits``:
    commits of unknown outcome, which may take effect later than any abort.
    """

    name: str
    id: int
    outcome: str = ABORTED
    committing: float | None = None
    ended: float = NEVER
    open_commits: int = 0
    ends: list[int] = field(default_factory=list)
    writes: list[Write] = field(default_factory=list)
    offsets: list[tuple[str, dict[str, int]]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Poll:
    """Records of one place that one poll returned, ascending as they came."""

    id: int
    process: str
    place: str
    level: str
    ended: float
    records: Sequence[tuple[int, str]]


@dataclass(frozen=True, slots=True)
class Position:
    """From where a process reads a place on: an offset, None if unknown, -1 if no more at all."""

    id: int
    process: str
    place: str
    offset: int | None


@dataclass(frozen=True, slots=True)
class Commit:
    """A requested commit of a group's offset; ``ended`` is :data:`NEVER` if its end is unknown."""

    id: int
    offset: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class Fetched:
    """A group's offset as returned by a coordinator; None: there is none."""

    id: int
    offset: int | None
    began: float
    ended: float
    final: bool


class Facts:
    """Everything by name and place. Public fields are only read after :meth:`of`."""

    def __init__(self) -> None:
        self.writes: dict[str, Write] = {}
        self.txns: dict[str, Txn] = {}
        self.polls: list[Poll] = []
        #: By process and place, in order: where it reads on, and what it got.
        self.readings: dict[tuple[str, str], list[Position | Poll]] = defaultdict(list)
        #: The group that a process is a member of.
        self.groups: dict[str, str] = {}
        #: Processes that read everything at the end.
        self.finals: set[str] = set()
        self.commits: dict[tuple[str, str], list[Commit]] = defaultdict(list)
        self.fetched: dict[tuple[str, str], list[Fetched]] = defaultdict(list)
        #: The last stable offset and the high watermark at the end, with the operation.
        self.ends: dict[str, tuple[int, int, int]] = {}
        #: What was acknowledged or read at an offset: values, each with an operation.
        self.log: dict[str, dict[int, dict[str, int]]] = defaultdict(dict)
        #: The places and offsets at which a value was acknowledged or read.
        self.found: dict[str, dict[tuple[str, int], int]] = defaultdict(dict)
        #: Records that were read, by level and place: values by offset. If a final reader has read
        #: everything, its records alone: they must include those of all others.
        self.read: dict[str, dict[str, dict[int, str]]] = {}
        self._values: dict[str, set[str]] = {}
        self._last: dict[tuple[str, str], int] = {}

    @classmethod
    def of(cls, events: Iterable[HistoryEvent]) -> "Facts":
        """Return the facts of a whole history."""
        facts = cls()
        began: dict[int, HistoryEvent] = {}
        for event in events:
            if event.type == INVOKE:
                began[event.id] = event
                facts._invoked(event)
            else:
                facts._completed(began.pop(event.id, None), event)
        # Operations without a completion: only commits may still matter, as possibly applied.
        for event in began.values():
            if event.f == "commit":
                facts._commit(event, NEVER)
        facts._conclude()
        return facts

    def is_visible(self, write: Write) -> bool:
        """Return whether readers of committed records see the write.

        If its outcome is unknown, it counts as committed once such a reader has seen it.
        """
        # A refused write or one of an aborted transaction must never be seen.
        if write.status == FAIL or (write.txn and self.txns[write.txn].outcome == ABORTED):
            return False
        is_certain = not write.txn or self.txns[write.txn].outcome == COMMITTED
        return (is_certain and write.status == OK) or write.value in self.values(READ_COMMITTED)

    def values(self, level: str) -> Set[str]:
        """All that was read at a level."""
        return self._values.get(level, frozenset())

    def last_read(self, level: str, place: str) -> int:
        """The greatest offset that was read there, -1 if none."""
        return self._last.get((level, place), -1)

    # ------------------------------------------------------------ events

    def _invoked(self, event: HistoryEvent) -> None:
        value = event.value
        # A write and its transaction are known from the invocation on: their outcome may never
        # arrive.
        if event.f == "send":
            origin = value.get("origin")
            write = Write(
                id=event.id,
                process=event.process,
                place=value["place"],
                value=value["value"],
                level=value["level"],
                txn=value["txn"],
                origin=(origin[0], origin[1], origin[2]) if origin else None,
            )
            self.writes[write.value] = write
            if write.txn:
                self._txn(write.txn, event.id).writes.append(write)
        elif event.f == "begin":
            self._txn(value["txn"], event.id)
        elif event.f == "offsets":
            txn = self._txn(value["txn"], event.id)
            txn.offsets.append((value["group"], dict(value["offsets"])))
        elif event.f == "end":
            txn = self._txn(value["txn"], event.id)
            txn.ends.append(event.id)
            # From the first request to commit until its answer, the outcome is unknown.
            if value["commit"]:
                txn.open_commits += 1
                txn.outcome = UNKNOWN
                if txn.committing is None:
                    txn.committing = event.time

    def _txn(self, name: str, number: int) -> Txn:
        return self.txns.setdefault(name, Txn(name, number))

    def _completed(self, began: HistoryEvent | None, event: HistoryEvent) -> None:
        # A completion without an invocation is an observation at one moment.
        if began is None:
            self._point(event)
        elif event.f == "send":
            write = self.writes[began.value["value"]]
            write.status = event.type
            if event.type == OK:
                # The acknowledged offset is the first evidence of where a record is.
                write.offset = event.value["offset"]
                if write.offset is not None:
                    self._lies(write.place, write.offset, write.value, event.id)
        elif event.f == "end":
            self._ended(self.txns[began.value["txn"]], began, event)
        elif event.f == "poll" and event.type == OK:
            self._polled(began, event)
        # A commit of unknown outcome may take effect at any time later.
        elif event.f == "commit" and event.type != FAIL:
            self._commit(began, event.time if event.type == OK else NEVER)
        elif event.f == "committed" and event.type == OK:
            for place, offset in event.value["offsets"].items():
                fetched = Fetched(
                    event.id, offset, began.time, event.time, bool(began.value.get("final"))
                )
                self.fetched[began.value["group"], place].append(fetched)

    def _point(self, event: HistoryEvent) -> None:
        value = event.value
        if event.f == "position":
            if value.get("group"):
                self.groups[event.process] = value["group"]
            if value.get("final"):
                self.finals.add(event.process)
            for place, offset in value["offsets"].items():
                self._reads_on(event, place, offset)
        elif event.f == "lost":
            for place in value["places"]:
                self._reads_on(event, place, -1)
        elif event.f == "raised":
            # librdkafka raised its epoch: unacknowledged records may be sent again under new
            # sequence numbers, so duplicates are allowed.
            for write in self.writes.values():
                if write.process == event.process and write.status == UNKNOWN:
                    write.level = SENT_ANEW
        elif event.f == "ends":
            for place, high in value["high"].items():
                self.ends[place] = (value["stable"][place], high, event.id)

    def _reads_on(self, event: HistoryEvent, place: str, offset: int | None) -> None:
        reading = self.readings[event.process, place]
        reading.append(Position(event.id, event.process, place, offset))

    def _ended(self, txn: Txn, began: HistoryEvent, event: HistoryEvent) -> None:
        if not began.value["commit"]:
            return
        if event.type == OK:
            txn.outcome, txn.ended = COMMITTED, min(txn.ended, event.time)
        # Only when every request to commit has failed is the transaction certainly aborted.
        elif event.type == FAIL:
            txn.open_commits -= 1
            if not txn.open_commits and txn.outcome == UNKNOWN:
                txn.outcome = ABORTED

    def _polled(self, began: HistoryEvent, event: HistoryEvent) -> None:
        level = began.value["level"]
        for place, records in event.value["records"].items():
            pairs = [(offset, value) for offset, value in records]
            poll = Poll(event.id, event.process, place, level, event.time, pairs)
            self.polls.append(poll)
            self.readings[event.process, place].append(poll)
            for offset, value in pairs:
                self._lies(place, offset, value, event.id)

    def _lies(self, place: str, offset: int, value: str, number: int) -> None:
        self.log[place].setdefault(offset, {}).setdefault(value, number)
        self.found[value].setdefault((place, offset), number)

    def _commit(self, began: HistoryEvent, ended: float) -> None:
        for place, offset in began.value["offsets"].items():
            commit = Commit(began.id, offset, began.time, ended)
            self.commits[began.value["group"], place].append(commit)

    def _conclude(self) -> None:
        """Derive what needs the whole history: the readers of each record, and the offsets of
        transactions.
        """
        for poll in self.polls:
            # A final reader read everything, so its records are the reference for all others.
            if self.finals and poll.process not in self.finals:
                continue
            self.read.setdefault(poll.level, {}).setdefault(poll.place, {}).update(poll.records)
            self._values.setdefault(poll.level, set()).update(value for _, value in poll.records)
            self._last[poll.level, poll.place] = max(
                self.last_read(poll.level, poll.place), *(offset for offset, _ in poll.records)
            )
        # Offsets that belong to a transaction count as committed when it commits.
        for txn in self.txns.values():
            if txn.outcome == ABORTED or txn.committing is None:
                continue
            for group, offsets in txn.offsets:
                for place, offset in offsets.items():
                    commit = Commit(txn.ends[-1], offset, txn.committing, txn.ended)
                    self.commits[group, place].append(commit)
