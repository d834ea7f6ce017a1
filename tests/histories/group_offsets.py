"""Check of committed offsets of consumer groups: an offset is a register, and each record is
processed.

An offset that a coordinator returns must have been requested, and no later commit may have
certainly replaced it before the request: the checks of an atomic register whose writes have a
beginning and an end.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from tests.histories.facts import NEVER, Commit, Facts, Fetched, Origin, Poll, Write
from tests.histories.levels import GROUP, READ_COMMITTED, TRANSACTIONAL, Anomaly


def anomalies(facts: Facts) -> Iterator[Anomaly]:
    """Lost commit, rewound commit, phantom (of offsets); lost input, double processing, and G1b of
    results without their offsets."""
    for key, fetched in facts.fetched.items():
        yield from _register(key, facts.commits.get(key, []), fetched)
    yield from _processed(facts)


def _register(
    key: tuple[str, str], commits: Sequence[Commit], fetched: Sequence[Fetched]
) -> Iterator[Anomaly]:
    by_offset: dict[int, list[Commit]] = defaultdict(list)
    for commit in commits:
        by_offset[commit.offset].append(commit)
    # Only commits that certainly took effect can have replaced an older value.
    answered = [commit for commit in commits if commit.ended != NEVER]
    done = sorted([*answered, *_proven(by_offset, fetched)], key=lambda commit: commit.ended)
    ends = [commit.ended for commit in done]
    latest = _latest_begun(done)
    for read in fetched:
        # Of the commits that ended before the read began, the one that began last is the reference.
        sooner = bisect_left(ends, read.began)
        over = latest[sooner - 1] if sooner else None
        found = _judge(read, by_offset, over)
        if found is not None:
            name, text, operations = found
            yield Anomaly(name, GROUP, f"group {key[0]}, {key[1]}: {text}", operations)


def _proven(
    by_offset: Mapping[int, Sequence[Commit]], fetched: Iterable[Fetched]
) -> Iterator[Commit]:
    """Return commits of unknown outcome that took effect, because their offset was returned and no
    other commit wrote it.

    A client's retry may take effect again, so such a commit never ends.
    """
    told: set[int] = set()
    for read in fetched:
        if read.offset is None or read.offset in told:
            continue
        told.add(read.offset)
        asked = by_offset.get(read.offset, ())
        # Its end is at the latest when it was read.
        if len(asked) == 1 and asked[0].ended == NEVER:
            yield replace(asked[0], ended=read.ended)


def _latest_begun(done: Iterable[Commit]) -> list[Commit]:
    """For each of those that ended one after the other: whichever began last until then."""
    latest: list[Commit] = []
    for commit in done:
        last = latest[-1] if latest else commit
        latest.append(commit if commit.began >= last.began else last)
    return latest


def _judge(
    read: Fetched, by_offset: dict[int, list[Commit]], over: Commit | None
) -> tuple[str, str, tuple[int, ...]] | None:
    """``over``: of the commits that had ended before, the one that began last."""
    # No offset at all: wrong once any commit has ended.
    if read.offset is None:
        if over is None:
            return None
        return "lost commit", f"{over.offset} was committed, none is returned", (over.id, read.id)
    asked = [commit for commit in by_offset.get(read.offset, ()) if commit.began <= read.ended]
    if not asked:
        return "phantom", f"{read.offset} is returned, and no client has committed it", (read.id,)
    # Every commit of this value ended before another one began that had ended before the read.
    if over is not None and all(commit.ended < over.began for commit in asked):
        text = f"{over.offset} was committed after {read.offset}, which is returned"
        return "rewound commit", text, (asked[-1].id, over.id, read.id)
    return None


def _processed(facts: Facts) -> Iterator[Anomaly]:
    """Every record below the offset at which a group has ended."""
    # Results by the input record that they were made from.
    results: dict[Origin, list[Write]] = defaultdict(list)
    for write in facts.writes.values():
        if write.origin is not None and facts.is_visible(write):
            results[write.origin].append(write)
    made: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (group, place, offset), writes in results.items():
        made[group, place].add(offset)
        # Two visible results of one record: the group processed it twice.
        if len(writes) > 1:
            text = f"group {group} made {writes[0].value} and {writes[1].value} of {place} {offset}"
            operations = tuple(write.id for write in writes)
            yield Anomaly("double processing", TRANSACTIONAL, text, operations)
    transforming = {group for txn in facts.txns.values() for group, _ in txn.offsets}
    polled = _polled(facts)
    for (group, place), fetched in facts.fetched.items():
        # The final offset of the group decides which records have to be processed.
        last = next((read for read in reversed(fetched) if read.final), None)
        if last is None:
            continue
        # Groups that commit in transactions have results. For others, a record counts as processed
        # once a poll returned it.
        if group in transforming:
            done = made.get((group, place), set())
            yield from _results_alone(group, place, results, done, last)
        else:
            done = polled.get((group, place), set())
        yield from _left_out(facts, group, place, done, last)


def _polled(facts: Facts) -> dict[tuple[str, str], set[int]]:
    polled: dict[tuple[str, str], set[int]] = defaultdict(set)
    for (process, place), steps in facts.readings.items():
        if process in facts.groups:
            for step in steps:
                if isinstance(step, Poll):
                    offsets = (offset for offset, _ in step.records)
                    polled[facts.groups[process], place].update(offsets)
    return polled


def _left_out(
    facts: Facts, group: str, place: str, done: set[int], last: Fetched
) -> Iterator[Anomaly]:
    for offset, value in sorted(facts.read.get(READ_COMMITTED, {}).get(place, {}).items()):
        write = facts.writes.get(value)
        if offset in done or offset >= (last.offset or 0) or write is None:
            continue
        if facts.is_visible(write):
            text = f"group {group} is at {last.offset} of {place}, and {value} at {offset} is left"
            yield Anomaly("lost input", GROUP, text, (write.id, last.id))


def _results_alone(
    group: str, place: str, results: dict[Origin, list[Write]], done: set[int], last: Fetched
) -> Iterator[Anomaly]:
    # A visible result at or beyond the final offset: the result was committed without the offset.
    beyond = sorted(offset for offset in done if offset >= (last.offset or 0))
    if beyond:
        write = results[group, place, beyond[0]][0]
        text = (
            f"{write.value} is there, made of {place} {beyond[0]}, and group {group} is at "
            f"{last.offset} only; {len(beyond) - 1} more like it"
        )
        yield Anomaly("G1b", TRANSACTIONAL, text, (write.id, last.id))
