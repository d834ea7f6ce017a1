"""Check of each reader's records, poll by poll, for those that it must not receive."""

from bisect import bisect_left
from collections.abc import Iterator

from tests.histories.events import FAIL
from tests.histories.facts import ABORTED, Facts, Poll, Position
from tests.histories.levels import READ_COMMITTED, Anomaly


def anomalies(facts: Facts) -> Iterator[Anomaly]:
    """Poll skip, nonmonotonic poll, G1a, precommitted read."""
    # All offsets that a reader of each level should be given, from what anybody has read.
    there: dict[tuple[str, str], list[int]] = {}
    for level, places in facts.read.items():
        for place, records in places.items():
            there[level, place] = sorted(
                offset for offset, value in records.items() if _belongs(facts, level, value)
            )
    for reading in facts.readings.values():
        yield from _steps(reading, there)
    for poll in facts.polls:
        yield from _too_early(facts, poll)


def _belongs(facts: Facts, level: str, value: str) -> bool:
    write = facts.writes.get(value)
    if write is None:
        return False
    aborted = write.txn and facts.txns[write.txn].outcome == ABORTED
    return level != READ_COMMITTED or not aborted


def _steps(
    reading: list[Position | Poll], there: dict[tuple[str, str], list[int]]
) -> Iterator[Anomaly]:
    """Yield the reads of one process and partition: from each position on, every existing
    record, once.
    """
    at: int | None = None
    before = 0
    for step in reading:
        # A new position: the next poll may start anywhere from here on.
        if isinstance(step, Position):
            at = step.offset if step.offset != -1 else None
            before = step.id
            continue
        for offset, value in step.records:
            if at is not None and offset < at:
                text = f"{step.process} was given offset {offset} of {step.place} when at {at}"
                yield Anomaly("nonmonotonic poll", step.level, text, (before, step.id))
            elif at is not None:
                # Existing offsets between the position and the returned record were skipped.
                offsets = there.get((step.level, step.place), [])
                first, end = bisect_left(offsets, at), bisect_left(offsets, offset)
                if first < end:
                    text = (
                        f"{step.process}, at {at} of {step.place}, was given {value} at {offset}; "
                        f"{end - first} before it are there, the first at {offsets[first]}"
                    )
                    yield Anomaly("poll skip", step.level, text, (before, step.id))
            at = offset + 1
        before = step.id


def _too_early(facts: Facts, poll: Poll) -> Iterator[Anomaly]:
    for offset, value in poll.records:
        write = facts.writes.get(value)
        if write is None:
            continue
        text = f"{poll.process} was given {value} at {poll.place} offset {offset}, "
        # The producer was certain that this record was not written.
        if write.status == FAIL:
            yield Anomaly("G1a", write.level, f"{text}which has failed", (write.id, poll.id))
        elif write.txn:
            txn = facts.txns[write.txn]
            operations = (write.id, *txn.ends[-2:], poll.id)
            if txn.outcome == ABORTED:
                yield Anomaly("G1a", poll.level, f"{text}of {txn.name}, aborted", operations)
            # The poll ended before the first request to commit began.
            elif txn.committing is not None and poll.ended < txn.committing:
                yield Anomaly(
                    "precommitted read",
                    poll.level,
                    f"{text}of {txn.name}, not committed yet",
                    operations,
                )
