"""Histories of a cluster without faults, in which the checker must find nothing.

Processes take turns by seed. Writes and commits of unknown outcome are among them, some of which
took effect.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterator

from tests.histories.events import HistoryEvent, HistoryRecorder
from tests.histories.levels import (
    IDEMPOTENT,
    PLAIN,
    READ_COMMITTED,
    READ_UNCOMMITTED,
    TRANSACTIONAL,
)

PLACES = ("a-0", "a-1", "b-0")
Turns = Iterator[None]


class PerfectCluster:
    """Logs, transactions and groups' offsets in memory; ``recorder`` has the history."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.recorder = HistoryRecorder(10**9, clock=itertools.count(0, 1000).__next__)
        #: Values with the transaction of each; None is a marker.
        self.logs: dict[str, list[tuple[str, str] | None]] = {place: [] for place in PLACES}
        self.open: dict[str, dict[str, int]] = {}
        self.aborted: set[str] = set()
        self.offsets: dict[tuple[str, str], int] = {}
        self._numbers = itertools.count(1)

    # ------------------------------------------------------------ the cluster

    def append(self, place: str, value: str, txn: str) -> int:
        """Append a record and return its offset."""
        offset = len(self.logs[place])
        self.logs[place].append((value, txn))
        if txn:
            self.open[txn].setdefault(place, offset)
        return offset

    def decide(self, txn: str, *, commit: bool) -> None:
        """Append the markers of a transaction to all its partitions."""
        for place in self.open.pop(txn):
            self.logs[place].append(None)
        if not commit:
            self.aborted.add(txn)

    def fetch(self, place: str, offset: int, level: str) -> tuple[list[tuple[int, str]], int]:
        """Return up to five records and the offset of the next fetch."""
        end = len(self.logs[place])
        if level == READ_COMMITTED:
            # A read_committed fetch ends at the first open transaction of the partition.
            end = min([end, *(first[place] for first in self.open.values() if place in first)])
        records: list[tuple[int, str]] = []
        while offset < end and len(records) < 5:
            entry = self.logs[place][offset]
            if entry and not (level == READ_COMMITTED and entry[1] in self.aborted):
                records.append((offset, entry[0]))
            offset += 1
        return records, offset

    # ------------------------------------------------------------ the clients

    def value(self, process: str) -> str:
        """Return a new value."""
        return f"{process}:{next(self._numbers)}"

    def send(
        self, process: str, place: str, level: str, txn: str = "", origin: object = None
    ) -> bool:
        """Send one record; now and then its outcome stays unknown."""
        value = self.value(process)
        sent = self.recorder.invoke(
            process, "send", place=place, value=value, level=level, txn=txn, origin=origin
        )
        is_answered = txn != "" or self.chance.random() < 0.95
        # Half of the writes without an answer have taken effect.
        if is_answered or self.chance.random() < 0.5:
            offset = self.append(place, value, txn)
        if is_answered:
            sent.ok(offset=offset)
        elif self.chance.random() < 0.5:
            sent.info(error="timed out")
        return is_answered

    def producer(self, process: str, level: str, count: int) -> Turns:
        """Send one record at a time."""
        for _ in range(count):
            self.send(process, self.chance.choice(PLACES), level)
            yield

    def writer(self, process: str, count: int) -> Turns:
        """Write transactions, each with a record in two partitions."""
        for number in range(count):
            txn = f"{process}.{number}"
            self.open[txn] = {}
            self.recorder.invoke(process, "begin", txn=txn).ok()
            for place in self.chance.sample(PLACES, 2):
                self.send(process, place, TRANSACTIONAL, txn)
                yield
            self.end(process, txn)
            yield

    def end(self, process: str, txn: str) -> bool:
        """Commit mostly, abort sometimes, sometimes with an unknown outcome.

        Return whether it committed.
        """
        commit = self.chance.random() < 0.8
        ended = self.recorder.invoke(process, "end", txn=txn, commit=commit)
        is_answered = self.chance.random() < 0.9
        # Half of the commits and aborts without an answer have taken effect.
        takes_effect = is_answered or self.chance.random() < 0.5
        self.decide(txn, commit=commit and takes_effect)
        if is_answered:
            ended.ok()
        else:
            ended.info(error="timed out")
        return commit and takes_effect

    def reader(self, process: str, level: str, *, final: bool = False) -> Turns:
        """Read from the start, forever or up to the end."""
        at = dict.fromkeys(PLACES, 0)
        self.recorder.point(process, "position", offsets=dict(at), group="", final=final)
        while True:
            place = self.chance.choice(PLACES)
            at[place] = self.poll(process, place, at[place], level)
            yield
            if final and all(self.fetch(p, o, level)[1] == o for p, o in at.items()):
                return

    def poll(self, process: str, place: str, offset: int, level: str) -> int:
        """Poll once and return the next offset."""
        polled = self.recorder.invoke(process, "poll", level=level)
        records, offset = self.fetch(place, offset, level)
        polled.ok(records={place: records} if records else {})
        return offset

    def member(self, group: str, level: str) -> Turns:
        """Read and commit, and start again under another name."""
        for number in itertools.count():
            process = f"{group}.{number}"
            at = self.begin_member(process, group)
            for _ in range(10):
                place = self.chance.choice(PLACES)
                at[place] = self.poll(process, place, at[place], level)
                yield
                if self.chance.random() < 0.7:
                    commit = self.recorder.invoke(
                        process, "commit", group=group, offsets={place: at[place]}
                    )
                    is_answered = self.chance.random() < 0.9
                    # Half of the offset commits without an answer have taken effect.
                    if is_answered or self.chance.random() < 0.5:
                        self.offsets[group, place] = at[place]
                    if is_answered:
                        commit.ok()
                yield
            self.recorder.point(process, "lost", places=list(PLACES))

    def begin_member(self, process: str, group: str) -> dict[str, int]:
        """Record and return the member's positions."""
        stored = self.committed(process, group)
        at = {place: offset or 0 for place, offset in stored.items()}
        self.recorder.point(process, "position", offsets=dict(at), group=group, final=False)
        return at

    def committed(self, process: str, group: str, *, final: bool = False) -> dict[str, int | None]:
        """Return a group's committed offsets."""
        query = self.recorder.invoke(process, "committed", group=group, final=final)
        offsets = {place: self.offsets.get((group, place)) for place in PLACES}
        query.ok(offsets=offsets)
        return offsets

    def transformer(self, group: str) -> Turns:
        """Write a result for each record, in a transaction with the record's offset.

        Results of results end with the third generation.
        """
        process = f"{group}.0"
        at = self.begin_member(process, group)
        depth: dict[str, int] = defaultdict(int)
        for number in itertools.count():
            place = self.chance.choice(PLACES[:2])
            records, after = self.fetch(place, at[place], READ_COMMITTED)
            self.poll(process, place, at[place], READ_COMMITTED)
            yield
            # There was no record to process.
            if after == at[place]:
                continue
            txn = f"{process}.{number}"
            self.open[txn] = {}
            self.recorder.invoke(process, "begin", txn=txn).ok()
            for offset, value in records:
                target = "a-1" if depth[value] < 3 and place == "a-0" else "b-0"
                self.send(process, target, TRANSACTIONAL, txn, (group, place, offset))
                yield
            offsets = {place: after}
            self.recorder.invoke(process, "offsets", txn=txn, group=group, offsets=offsets).ok()
            if self.end(process, txn):
                self.offsets[group, place] = at[place] = after
            else:
                self.recorder.point(process, "position", offsets={place: at[place]}, group=group)
            yield


def history(seed: int, steps: int) -> list[HistoryEvent]:
    """Return the events of ``steps`` turns, followed by a read of everything that was written."""
    cluster = PerfectCluster(seed)
    turns: list[Turns] = [
        cluster.producer("plain", PLAIN, steps),
        cluster.producer("idempotent", IDEMPOTENT, steps),
        cluster.writer("writer1", steps),
        cluster.writer("writer2", steps),
        cluster.reader("committed", READ_COMMITTED),
        cluster.reader("uncommitted", READ_UNCOMMITTED),
        cluster.member("members", READ_COMMITTED),
        cluster.transformer("transformers"),
    ]
    for _ in range(steps):
        next(cluster.chance.choice(turns))
    # Open transactions are aborted, as their timeouts would do.
    for txn in list(cluster.open):
        cluster.decide(txn, commit=False)
    ends = {place: len(log) for place, log in cluster.logs.items()}
    cluster.recorder.point("final", "ends", stable=ends, high=dict(ends))
    for group in ("members", "transformers"):
        cluster.committed("final", group, final=True)
    for level in (READ_COMMITTED, READ_UNCOMMITTED):
        for _ in cluster.reader(f"final-{level}", level, final=True):
            pass
    return cluster.recorder.events
