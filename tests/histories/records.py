"""Check of the records in the partitions against the answers to producers."""

from collections.abc import Iterator

from tests.histories.events import FAIL, OK
from tests.histories.facts import ABORTED, COMMITTED, Facts, Write
from tests.histories.levels import READ_COMMITTED, Anomaly


def anomalies(facts: Facts) -> Iterator[Anomaly]:
    """Lost write, unseen, duplicate, phantom, inconsistent offsets, nonmonotonic send."""
    yield from _inconsistent_offsets(facts)
    yield from _twice_or_by_nobody(facts)
    told: set[str] = set()
    yield from _acknowledged_and_gone(facts, told)
    yield from _read_and_gone(facts, told)
    yield from _out_of_order(facts)


def _inconsistent_offsets(facts: Facts) -> Iterator[Anomaly]:
    for place, offsets in facts.log.items():
        for offset, values in offsets.items():
            if len(values) > 1:
                text = f"{place} has {' and '.join(sorted(values))} at offset {offset}"
                yield Anomaly("inconsistent offsets", READ_COMMITTED, text, tuple(values.values()))


def _twice_or_by_nobody(facts: Facts) -> Iterator[Anomaly]:
    for value, found in facts.found.items():
        write = facts.writes.get(value)
        if write is None:
            text = f"{value} was read, and no client has sent it"
            yield Anomaly("phantom", READ_COMMITTED, text, tuple(found.values()))
            continue
        # A record in another partition than it was sent to was invented by the cluster.
        elsewhere = [place for place, _ in found if place != write.place]
        operations = (write.id, *found.values())
        if elsewhere:
            text = f"{value} was sent to {write.place} and is in {elsewhere[0]}"
            yield Anomaly("phantom", READ_COMMITTED, text, operations)
        elif len(found) > 1:
            offsets = " and ".join(str(offset) for _, offset in sorted(found))
            text = f"{write.place} has {value} at offsets {offsets}"
            yield Anomaly("duplicate", write.level, text, operations)


def _acknowledged_and_gone(facts: Facts, told: set[str]) -> Iterator[Anomaly]:
    for write in facts.writes.values():
        # Aborted and undecided transactions promise nothing about their records.
        if write.status != OK or (write.txn and facts.txns[write.txn].outcome != COMMITTED):
            continue
        for level in facts.read:
            found = _gone(facts, write, level, write.offset, "was acknowledged")
            if found is not None and write.value not in told:
                told.add(write.value)
                yield found


def _read_and_gone(facts: Facts, told: set[str]) -> Iterator[Anomaly]:
    """Return losses below a high watermark: a record that a consumer received stays, aborted or
    not.
    """
    for poll in facts.polls:
        for offset, value in poll.records:
            write = facts.writes.get(value)
            if write is None or (poll.level == READ_COMMITTED and _is_void(facts, write)):
                continue
            found = _gone(facts, write, poll.level, offset, f"was read by {poll.process}")
            if found is not None and value not in told:
                told.add(value)
                yield found


def _is_void(facts: Facts, write: Write) -> bool:
    return write.status == FAIL or bool(write.txn and facts.txns[write.txn].outcome == ABORTED)


def _gone(facts: Facts, write: Write, level: str, offset: int | None, what: str) -> Anomaly | None:
    """Return the loss of a write.

    None if it exists, or if no reader has read that far or to the end.
    """
    if write.value in facts.values(level):
        return None
    operations = (write.id, *facts.found.get(write.value, {}).values())
    last = facts.last_read(level, write.place)
    text = f"{write.value} {what} at {write.place} offset {offset}; {level} "
    # Without an offset only final readers, who have read everything, prove a loss.
    if offset is None:
        text = (
            f"{write.value} {what} without an offset; {level} ends at {last} of {write.place} "
            "without it"
        )
        return Anomaly("lost write", write.level, text, operations) if facts.finals else None
    if offset < last:
        return Anomaly(
            "lost write", write.level, f"{text}continues to {last} without it", operations
        )
    if facts.finals:
        return Anomaly("unseen", write.level, f"{text}ends at {last}", operations)
    return None


def _out_of_order(facts: Facts) -> Iterator[Anomaly]:
    """Return the disorder of each producer and partition, in the order of its sends (ids)."""
    greatest: dict[tuple[str, str], Write] = {}
    for write in facts.writes.values():
        if write.offset is None:
            continue
        before = greatest.setdefault((write.process, write.place), write)
        assert before.offset is not None
        if write.offset < before.offset:
            text = (
                f"{write.process} sent {before.value} before {write.value}; they are at offsets "
                f"{before.offset} and {write.offset} of {write.place}"
            )
            yield Anomaly("nonmonotonic send", write.level, text, (before.id, write.id))
        else:
            greatest[write.process, write.place] = write
