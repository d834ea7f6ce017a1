"""Clients that read: from offsets of their own choice, or as members of a group.

What a poll returned, and from where a partition is read on, is written down in the order in which
the library did it: a rebalance may fall between two records that one loop collects.
"""

import time
from collections.abc import Iterable
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from tests.histories.clients import (
    CALL_S,
    Instances,
    Restart,
    Run,
    error_of,
    partition_of,
    place_of,
)
from tests.histories.events import RecordedOperation
from tests.histories.levels import READ_UNCOMMITTED
from tests.histories.plan import BROKERS_ASSIGN, EAGER

COLLECT_S = 0.3
#: The shortest that brokers let a member be silent for, by default.
SESSION_MS = 6_000
#: A client that reads wrongly on purpose does so in one poll of this number.
WRONG_EVERY = 10

Records = dict[str, list[tuple[int, str]]]


class Reading:
    """A library's consumer whose polls and positions are written down. ``at``: the next offset by
    place; ``ended``: the end of each place that it has seen; ``is_stuck``: the library does not
    know from where to read, and may not ask again."""

    def __init__(
        self, run: Run, process: str, level: str, settings: dict[str, Any], *, final: bool = False
    ) -> None:
        self.at: dict[str, int] = {}
        self.ended: dict[str, int] = {}
        self.is_stuck = False
        self.run = run
        self.process = process
        self.level = level
        self.group = str(settings.get("group.id", ""))
        self._final = final
        self._operation: RecordedOperation | None = None
        #: Of the poll that is under way: not written down yet; to be returned.
        self._untold: Records = {}
        self._kept: Records = {}
        defaults = {
            "group.id": "none",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": level,
        }
        self.consumer = Consumer(run.settings(**{**defaults, **settings}))

    def poll(self, most: int) -> Records:
        """Return up to ``most`` records by place, of partitions that the client owns at the end of
        the poll.

        Raises :class:`Restart` where it could be stuck: librdkafka passes NOT_COORDINATOR of an
        OffsetFetch to the application and ignores the partition until the next rebalance.
        """
        # Callbacks of a rebalance run inside poll() and add to these.
        self._untold, self._kept = {}, {}
        self._begin()
        until_s = time.monotonic() + COLLECT_S
        for _ in range(most):
            message = self.consumer.poll(max(until_s - time.monotonic(), 0.0))
            if message is None:
                break
            self._take(message)
        self._tell()
        # A new instance joins the group again and gets the offsets then.
        if self.is_stuck:
            raise Restart
        return self._kept

    def moved(self, offsets: dict[str, int | None]) -> None:
        """Record the positions from which it continues; None: chosen by the library."""
        for place, offset in offsets.items():
            self.at.pop(place, None)
            if offset is not None:
                self.at[place] = offset
        self._between("position", {"offsets": offsets, "group": self.group, "final": self._final})

    def lost(self, places: Iterable[str]) -> None:
        """Record the partitions that it no longer reads."""
        names = sorted(places)
        for place in names:
            self.at.pop(place, None)
        self._between("lost", {"places": names})
        # Records of a revoked partition are not processed: its next owner reads them again.
        for place in names:
            self._kept.pop(place, None)

    def seek(self, place: str, offset: int, *, secret: bool = False) -> bool:
        """Continue reading from an offset; return False if that failed and the position is unknown.

        ``secret``: nothing is recorded.
        """
        try:
            self.consumer.seek(partition_of(place, offset))
            moved: int | None = offset
        except KafkaException:
            moved = None
        if not secret:
            self.moved({place: moved})
        return moved is not None

    def _between(self, f: str, value: dict[str, Any]) -> None:
        """Return a generator's rest, with collected records first, also in the middle of a poll."""
        is_polling = self._operation is not None
        # The records before the rebalance belong before it in the history, so the poll is split.
        self._tell()
        self.run.recorder.point(self.process, f, **value)
        if is_polling:
            self._begin()

    def _begin(self) -> None:
        self._operation = self.run.recorder.invoke(self.process, "poll", level=self.level)

    def _tell(self) -> None:
        if self._operation is not None:
            self._operation.ok(records=self._untold)
            self._operation, self._untold = None, {}

    def _take(self, message: Any) -> None:
        place = f"{message.topic()}-{message.partition()}"
        if message.error() is not None:
            # Other errors are passing, and librdkafka retries.
            if message.error().code() == KafkaError._PARTITION_EOF:
                self.ended[place] = message.offset()
            return
        record = (message.offset(), message.value().decode())
        self._untold.setdefault(place, []).append(record)
        self._kept.setdefault(place, []).append(record)
        self.at[place] = message.offset() + 1


def fetch_committed(
    run: Run,
    process: str,
    consumer: Consumer,
    group: str,
    places: list[TopicPartition],
    *,
    final: bool = False,
) -> dict[str, int | None] | None:
    """A group's offsets, as its coordinator tells them; None where it does not."""
    operation = run.recorder.invoke(process, "committed", group=group, final=final)
    try:
        found = consumer.committed(places, timeout=CALL_S)
    except KafkaException as error:
        operation.info(error=str(error_of(error)))
        return None
    if any(item.error is not None for item in found):
        # One partition without an answer leaves the whole result unusable.
        operation.info(error=str(next(item.error for item in found if item.error is not None)))
        return None
    offsets = {place_of(item): item.offset if item.offset >= 0 else None for item in found}
    operation.ok(offsets=offsets)
    return offsets


class GroupReading(Reading):
    """A member of a group: it requests the group's offset of each partition that it is assigned."""

    def __init__(
        self, run: Run, process: str, level: str, group: str, assignor: str, topics: tuple[str, ...]
    ) -> None:
        settings: dict[str, Any] = {"group.id": group}
        # KIP-848: the broker assigns, and its configuration sets the timeouts.
        if assignor == BROKERS_ASSIGN:
            settings["group.protocol"] = "consumer"
        else:
            settings |= {
                "partition.assignment.strategy": assignor,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": SESSION_MS // 4,
            }
        super().__init__(run, process, level, settings)
        # The eager protocol revokes all partitions before it assigns new ones.
        self._is_cooperative = assignor != EAGER
        self.consumer.subscribe(
            [run.topics[topic] for topic in topics],
            on_assign=self._assigned,
            on_revoke=self._revoked,
            on_lost=self._revoked,
        )

    def commit(self, offsets: dict[str, int], *, secret: bool = False) -> bool:
        """Commit; return whether the commit was acknowledged."""
        operation = None
        if not secret:
            operation = self.run.recorder.invoke(
                self.process, "commit", group=self.group, offsets=dict(offsets)
            )
        asked = [partition_of(place, offset) for place, offset in offsets.items()]
        # A synchronous commit returns an error for each partition, or raises for all of them.
        try:
            done = self.consumer.commit(offsets=asked, asynchronous=False)
            failed = next((item.error for item in done if item.error is not None), None)
        except KafkaException as error:
            failed = error_of(error)
        if operation is not None and failed is None:
            operation.ok()
        elif operation is not None:
            # A commit that failed may still have been applied.
            operation.info(error=str(failed))
        return failed is None

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        told = None
        # The callback requests the offsets itself, so that the history has the value that the
        # member starts from.
        if partitions:
            told = fetch_committed(self.run, self.process, consumer, self.group, partitions)
            self.is_stuck = self.is_stuck or told is None
        offsets: dict[str, int | None] = {}
        for partition in partitions:
            if told is None:
                offsets[place_of(partition)] = None
            else:
                partition.offset = offsets[place_of(partition)] = told[place_of(partition)] or 0
        # A cooperative assignment is an increment, an eager one replaces everything (KIP-429).
        if self._is_cooperative:
            consumer.incremental_assign(partitions)
        else:
            consumer.assign(partitions)
        self.moved(offsets)

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        self.lost(place_of(partition) for partition in partitions)
        if self._is_cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()


class OffsetReader(Instances):
    """Assigns some partitions to itself, reads them from some offset on, and moves now and then."""

    def instance(self) -> None:
        client = self.client
        settings = {}
        # A planted mistake, which the checker has to find.
        if client.wrong == "reads uncommitted":
            settings = {"isolation.level": READ_UNCOMMITTED}
        reading = Reading(self.run, self.process, client.level, settings)
        known: dict[str, int] = {}
        self._assign(reading, known)
        polls = 0
        while self.run.goes_on:
            records = reading.poll(client.batch)
            self.pause(client.pause_s)  # or it would read the same again as fast as it can
            polls += 1
            # Known offsets are below the end, so a seek to a smaller one is always valid.
            known.update(reading.at)
            if client.wrong == "skips" and polls % WRONG_EVERY == 0:
                reading.consumer.poll(1)  # whatever it returns is not written down
            for place in records:
                if client.wrong == "goes back" and polls % WRONG_EVERY == 0:
                    reading.seek(place, reading.at[place] - 1, secret=True)
                elif self.chance.random() < client.restarts:
                    reading.seek(place, self.chance.randint(0, known[place]))
            if self.chance.random() < client.restarts:
                self._assign(reading, known)
        reading.consumer.close()

    def _assign(self, reading: Reading, known: dict[str, int]) -> None:
        places = self.run.places(self.client.topics)
        kept = self.chance.sample(places, self.chance.randint(1, len(places)))
        if reading.at:
            reading.lost(list(reading.at))
        offsets: dict[str, int | None] = {}
        for item in kept:
            at = known.get(place_of(item), 0)
            # The start, the last known position, or something between them.
            item.offset = self.chance.choice((0, at, self.chance.randint(0, at)))
            offsets[place_of(item)] = item.offset
        reading.consumer.assign(kept)
        reading.moved(offsets)


class GroupMember(Instances):
    """Commits what it has read, each time, and leaves now and then."""

    def instance(self) -> None:
        client = self.client
        group = f"{client.group}-{self.run.seed}"
        reading = GroupReading(
            self.run, self.process, client.level, group, client.assignor, client.topics
        )
        committed: dict[str, list[int]] = {}
        try:
            while self.run.goes_on:
                records = reading.poll(client.batch)
                # The committed offset is the next one to read, after the last record that was
                # received.
                offsets = {place: found[-1][0] + 1 for place, found in records.items()}
                if offsets and reading.commit(offsets):
                    for place, offset in offsets.items():
                        committed.setdefault(place, []).append(offset)
                if client.wrong and self._rewind(reading, committed):
                    return
                if self.chance.random() < client.restarts:
                    return
        finally:
            reading.consumer.close()

    @staticmethod
    def _rewind(reading: GroupReading, committed: dict[str, list[int]]) -> bool:
        """Once a place has some commits, to the first of them."""
        far = {place: offsets[0] for place, offsets in committed.items() if len(offsets) > 3}
        return bool(far) and reading.commit(far, secret=True)
