"""Relations between transactions: circles, partial transactions, and those that never end.

Edges are those of Adya's histories: *ww*, whose record is next in a partition; *wr*, whose record
was the input of a transaction. Kafka only isolates readers of committed records from pending
transactions, so a circle of *ww* edges (G0) is no bug there; one of *wr* edges (G1c) is.
"""

from collections import defaultdict
from collections.abc import Iterator

from tests.histories.events import OK
from tests.histories.facts import UNKNOWN, Facts, Txn, Write
from tests.histories.graphs import circle, components
from tests.histories.levels import READ_COMMITTED, TRANSACTIONAL, Anomaly

#: Of each edge, the two operations that make it.
Edges = dict[tuple[str, str], tuple[int, int]]


def anomalies(facts: Facts) -> Iterator[Anomaly]:
    """G0, G1b, G1c, hanging transaction."""
    yield from _circles("G0", TRANSACTIONAL, _next_in_place(facts))
    yield from _circles("G1c", READ_COMMITTED, _inputs(facts))
    for txn in facts.txns.values():
        yield from _in_part(facts, txn)
    for place, (stable, high, number) in facts.ends.items():
        if stable < high:
            text = f"the last stable offset of {place} is {stable}, its high watermark {high}"
            yield Anomaly("hanging transaction", TRANSACTIONAL, text, (number,))


def _circles(name: str, level: str, edges: Edges) -> Iterator[Anomaly]:
    graph: dict[str, set[str]] = defaultdict(set)
    for first, second in edges:
        graph[first].add(second)
    for component in components(graph):
        way = circle(graph, component)
        pairs = zip(way, [*way[1:], way[0]], strict=True)
        operations = tuple(number for pair in pairs for number in edges[pair])
        text = " -> ".join([*way[:6], *(["…"] if len(way) > 6 else []), way[0]])
        yield Anomaly(name, level, text, operations)


def _next_in_place(facts: Facts) -> Edges:
    edges: Edges = {}
    for offsets in facts.log.values():
        before: Write | None = None
        # The next visible transactional record in the partition is the end of a ww edge.
        for offset in sorted(offsets):
            write = facts.writes.get(next(iter(offsets[offset])))
            if write is None or not write.txn or not facts.is_visible(write):
                continue
            # Neighbours of the same transaction make no edge.
            if before is not None and before.txn != write.txn:
                edges.setdefault((before.txn, write.txn), (before.id, write.id))
            before = write
    return edges


def _inputs(facts: Facts) -> Edges:
    edges: Edges = {}
    for write in facts.writes.values():
        if write.origin is None or not write.txn or not facts.is_visible(write):
            continue
        # The record at the input's offset belongs to the transaction that was read.
        _, place, offset = write.origin
        for value in facts.log.get(place, {}).get(offset, ()):
            source = facts.writes.get(value)
            if source is not None and source.txn and source.txn != write.txn:
                edges.setdefault((source.txn, write.txn), (source.id, write.id))
    return edges


def _in_part(facts: Facts, txn: Txn) -> Iterator[Anomaly]:
    """Yield transactions of which only some records are committed."""
    # If the outcome is known, a missing record is a lost write, and an existing one is G1a.
    if txn.outcome != UNKNOWN or not facts.finals:
        return
    # A record that is missing below the last one read is certainly not visible.
    there = [write for write in txn.writes if write.value in facts.values(READ_COMMITTED)]
    missing = [
        write
        for write in txn.writes
        if write.status == OK
        and write.value not in facts.values(READ_COMMITTED)
        and (write.offset or 0) < facts.last_read(READ_COMMITTED, write.place)
    ]
    if there and missing:
        text = (
            f"of {txn.name}, whose outcome is unknown, {there[0].value} is there and "
            f"{missing[0].value} is not"
        )
        yield Anomaly("G1b", TRANSACTIONAL, text, (there[0].id, missing[0].id, *txn.ends[-1:]))
