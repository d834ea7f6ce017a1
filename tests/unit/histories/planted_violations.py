"""Violations that no cluster may cause, each planted into a sound history.

Each entry of :data:`PLANTED` turns the events of a history into those with its anomaly.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

from tests.histories.events import INVOKE, OK, HistoryEvent
from tests.histories.levels import IDEMPOTENT, READ_COMMITTED, READ_UNCOMMITTED, TRANSACTIONAL

History = list[HistoryEvent]
FINAL = f"final-{READ_COMMITTED}"
FINAL_UNCOMMITTED = f"final-{READ_UNCOMMITTED}"


def of(event: HistoryEvent, **value: Any) -> HistoryEvent:
    """Return the event with some of its values replaced."""
    return replace(event, value={**event.value, **value})


def polls(events: Iterable[HistoryEvent]) -> Iterator[HistoryEvent]:
    """Return the polls that returned records."""
    return (e for e in events if e.f == "poll" and e.type == OK and e.value["records"])


def read_by(events: Iterable[HistoryEvent], process: str) -> dict[tuple[str, int], str]:
    """Return the values that a process has read, by place and offset."""
    return {
        (place, offset): value
        for event in polls(events)
        if event.process == process
        for place, records in event.value["records"].items()
        for offset, value in records
    }


def acknowledged(events: History, **expected: Any) -> list[tuple[HistoryEvent, HistoryEvent]]:
    """Return the invocations and completions of acknowledged sends with these values."""
    began = {e.id: e for e in events if e.f == "send" and e.type == INVOKE}
    return [
        (began[e.id], e)
        for e in events
        if e.f == "send"
        and e.type == OK
        and all(began[e.id].value[name] == value for name, value in expected.items())
    ]


def without(events: History, value: str) -> History:
    """Remove a record from every poll."""
    return [
        of(
            e,
            records={
                place: kept
                for place, records in e.value["records"].items()
                if (kept := [pair for pair in records if pair[1] != value])
            },
        )
        if e.f == "poll" and e.type == OK
        else e
        for e in events
    ]


def also_polled(events: History, process: str, place: str, offset: int, value: str) -> History:
    """Append a poll that returns the record."""
    number, time = max(e.id for e in events) + 1, events[-1].time + 1
    level = READ_COMMITTED if process == FINAL else READ_UNCOMMITTED
    return [
        *events,
        HistoryEvent(number, INVOKE, "poll", process, time, {"level": level}),
        HistoryEvent(
            number, OK, "poll", process, time + 1, {"records": {place: [(offset, value)]}}
        ),
    ]


def _committed_txns(events: History) -> set[str]:
    """Return the transactions with a confirmed commit of which a reader received something on
    the way.
    """
    began = {e.id: e for e in events if e.f == "end" and e.type == INVOKE}
    ended = {
        began[e.id].value["txn"]
        for e in events
        if e.f == "end" and e.type == OK and began[e.id].value["commit"]
    }
    early = set(read_by(events, "committed").values())
    return {
        send.value["txn"]
        for send, _ in acknowledged(events, level=TRANSACTIONAL)
        if send.value["txn"] in ended
        and send.process.startswith("writer")
        and send.value["value"] in early
    }


# ---------------------------------------------------------------- each anomaly


def g1a(events: History) -> History:
    """Turn a commit into an abort."""
    txn = min(_committed_txns(events))
    return [
        of(e, commit=False) if e.f == "end" and e.value.get("txn") == txn else e for e in events
    ]


def g1b(events: History) -> History:
    """Make a transaction's outcome unknown and remove all but one of its records."""
    txn = min(_committed_txns(events))
    ends = {e.id for e in events if e.f == "end" and e.value.get("txn") == txn}
    unknown = [e for e in events if not (e.id in ends and e.type == OK)]
    last = dict(read_by(events, FINAL).keys())
    for send, done in acknowledged(events, txn=txn):
        # A record at the end of its place may only be unread, and is not yet a violation.
        if done.value["offset"] < last[send.value["place"]]:
            return without(unknown, send.value["value"])
    raise LookupError(txn)


def g1c(events: History) -> History:
    """Append two transactions, each made of the other's record."""
    number, time = max(e.id for e in events), events[-1].time
    more: History = []

    def add(f: str, process: str, value: dict[str, Any], done: dict[str, Any]) -> None:
        nonlocal number, time
        number, time = number + 1, time + 2
        more.append(HistoryEvent(number, INVOKE, f, process, time, value))
        more.append(HistoryEvent(number, OK, f, process, time + 1, done))

    for own, other in (("c-0", "c-1"), ("c-1", "c-0")):
        send = {"place": own, "value": f"circle:{own}", "level": TRANSACTIONAL, "txn": own}
        add("send", own, {**send, "origin": ("circle", other, 0)}, {"offset": 0})
        add("end", own, {"txn": own, "commit": True}, {})
    for place in ("c-0", "c-1"):
        for process, level in ((FINAL, READ_COMMITTED), (FINAL_UNCOMMITTED, READ_UNCOMMITTED)):
            records = {place: [(0, f"circle:{place}")]}
            add("poll", process, {"level": level}, {"records": records})
    return [*events, *more]


def _plain_and_last(events: History, *, is_last: bool) -> str:
    """Return an acknowledged record outside transactions, at the end of its place or before."""
    last: dict[str, int] = {}
    for reader in (FINAL, FINAL_UNCOMMITTED):
        for place, offset in read_by(events, reader):
            last[place] = max(last.get(place, -1), offset)
    for send, done in acknowledged(events, txn="", level=IDEMPOTENT):
        if (done.value["offset"] == last[send.value["place"]]) == is_last:
            return str(send.value["value"])
    raise LookupError("no such record")


def lost_write(events: History) -> History:
    """Remove an acknowledged record from every poll."""
    return without(events, _plain_and_last(events, is_last=False))


def lost_after_it_was_read(events: History) -> History:
    """Remove a record that a reader has received from the final reads, which continue behind it."""
    early = set(read_by(events, "uncommitted").values())
    value = next(
        s.value["value"]
        for s, _ in acknowledged(events, txn="", level=IDEMPOTENT)
        if s.value["value"] in early
    )
    finals = (FINAL, FINAL_UNCOMMITTED)
    spoilt = without([e for e in events if e.process in finals], value)
    sent = {e.id for e in events if e.f == "send" and e.value.get("value") == value}
    return [
        e for e in events if e.process not in finals and not (e.id in sent and e.type == OK)
    ] + spoilt


def unseen(events: History) -> History:
    """Append an acknowledged record behind everything that is read."""
    place = "b-0"
    number, time = max(e.id for e in events) + 1, events[-1].time + 1
    end = max(offset for found, offset in read_by(events, FINAL_UNCOMMITTED) if found == place)
    value = {"place": place, "value": "last:1", "level": IDEMPOTENT, "txn": "", "origin": None}
    return [
        *events,
        HistoryEvent(number, INVOKE, "send", "last", time, value),
        HistoryEvent(number, OK, "send", "last", time + 1, {"offset": end + 100}),
    ]


def duplicate(events: History) -> History:
    """Return an idempotent producer's record a second time, at the end."""
    send, done = acknowledged(events, level=IDEMPOTENT)[0]
    place, value = send.value["place"], send.value["value"]
    return also_polled(events, FINAL_UNCOMMITTED, place, done.value["offset"] + 10**6, value)


def inconsistent_offsets(events: History) -> History:
    """Acknowledge a record with the offset of another one."""
    (one, done), (other, _) = [
        pair for pair in acknowledged(events, level=IDEMPOTENT) if pair[0].value["place"] == "a-0"
    ][:2]
    return [
        of(e, offset=done.value["offset"]) if e.id == other.id and e.type == OK else e
        for e in events
        if one.id
    ]


def poll_skip(events: History) -> History:
    """Remove a record from the middle of one reader's poll."""
    for poll in polls(events):
        for place, records in poll.value["records"].items():
            if poll.process == "uncommitted" and len(records) > 2:
                kept = {**poll.value["records"], place: [records[0], *records[2:]]}
                return [of(e, records=kept) if e is poll else e for e in events]
    raise LookupError("no poll of three records")


def nonmonotonic_poll(events: History) -> History:
    """Return a reader's first record to it again, at the end."""
    (place, offset), value = next(iter(read_by(events, "uncommitted").items()))
    return also_polled(events, "uncommitted", place, offset, value)


def nonmonotonic_send(events: History) -> History:
    """Swap two records of an idempotent producer."""
    (one, first), (other, second) = [
        pair for pair in acknowledged(events, level=IDEMPOTENT) if pair[0].value["place"] == "a-0"
    ][:2]
    swapped = {
        one.value["value"]: other.value["value"],
        other.value["value"]: one.value["value"],
    }
    offsets = {first.id: second.value["offset"], second.id: first.value["offset"]}
    result = []
    for e in events:
        if e.f == "send" and e.type == OK and e.id in offsets:
            e = of(e, offset=offsets[e.id])
        elif e.f == "poll" and e.type == OK:
            records = {
                place: [(offset, swapped.get(value, value)) for offset, value in pairs]
                for place, pairs in e.value["records"].items()
            }
            e = of(e, records=records)
        result.append(e)
    return result


def precommitted_read(events: History) -> History:
    """Move a commit behind every read."""
    txn = min(_committed_txns(events))
    ends = {e.id for e in events if e.f == "end" and e.value.get("txn") == txn}
    late = events[-1].time + 1
    return sorted(
        (replace(e, time=late) if e.id in ends else e for e in events), key=lambda e: e.time
    )


def phantom(events: History) -> History:
    """Add a record that no client has sent."""
    return also_polled(events, FINAL_UNCOMMITTED, "a-0", 10**6, "nobody:1")


def _with_final_offset(events: History, group: str, place: str, offset: int | None) -> History:
    """Replace a group's offset in the final query."""
    queries = {
        e.id
        for e in events
        if e.f == "committed" and e.value.get("final") and e.value.get("group") == group
    }
    return [
        of(e, offsets={**e.value["offsets"], place: offset})
        if e.id in queries and e.type == OK
        else e
        for e in events
    ]


def lost_commit(events: History) -> History:
    """Remove the members' offset."""
    return _with_final_offset(events, "members", "a-0", None)


def rewound_commit(events: History) -> History:
    """Replace the members' offset by an older one, all commits of which have ended."""
    began = [e for e in events if e.f == "commit" and e.type == INVOKE]
    answered = {e.id for e in events if e.f == "commit" and e.type == OK}
    for commit in began:
        (place, offset), *_ = commit.value["offsets"].items()
        same = [e.id for e in began if e.value["offsets"] == commit.value["offsets"]]
        later = [
            e.id
            for e in began
            if e.id in answered and e.id > max(same) and place in e.value["offsets"]
        ]
        if answered.issuperset(same) and later:
            return _with_final_offset(events, "members", place, offset)
    raise LookupError("no such commit")


def phantom_commit(events: History) -> History:
    """Replace the members' offset by one that no member has committed."""
    return _with_final_offset(events, "members", "a-0", 10**7)


def _results(events: History) -> list[tuple[HistoryEvent, HistoryEvent]]:
    final_values = set(read_by(events, FINAL).values())
    return [
        pair
        for pair in acknowledged(events, level=TRANSACTIONAL)
        if pair[0].value["origin"] and pair[0].value["value"] in final_values
    ]


def double_processing(events: History) -> History:
    """Turn another record's result into a second one of the same record."""
    first, second = (send for send, _ in _results(events)[:2])
    return [
        of(e, origin=first.value["origin"]) if e.id == second.id and e.type == INVOKE else e
        for e in events
    ]


def lost_input(events: History) -> History:
    """Remove the result of a record below the group's offset."""
    first = _results(events)[0][0]
    return [of(e, origin=None) if e.id == first.id and e.type == INVOKE else e for e in events]


def hanging_transaction(events: History) -> History:
    """Keep the last stable offset below the high watermark."""
    return [
        of(e, stable={**e.value["stable"], "a-0": e.value["high"]["a-0"] - 1})
        if e.f == "ends"
        else e
        for e in events
    ]


#: Name of the anomaly, how it is planted, and the anomalies that necessarily follow.
PLANTED: tuple[tuple[str, Callable[[History], History], frozenset[str]], ...] = (
    ("G1a", g1a, frozenset()),
    ("G1b", g1b, frozenset()),
    ("G1c", g1c, frozenset()),
    ("lost write", lost_write, frozenset()),
    ("lost write", lost_after_it_was_read, frozenset()),
    ("duplicate", duplicate, frozenset()),
    ("unseen", unseen, frozenset()),
    ("inconsistent offsets", inconsistent_offsets, frozenset({"duplicate", "nonmonotonic send"})),
    ("poll skip", poll_skip, frozenset()),
    ("nonmonotonic poll", nonmonotonic_poll, frozenset()),
    ("nonmonotonic send", nonmonotonic_send, frozenset()),
    ("precommitted read", precommitted_read, frozenset()),
    ("phantom", phantom, frozenset()),
    ("phantom", phantom_commit, frozenset({"lost input"})),
    ("lost commit", lost_commit, frozenset()),
    ("rewound commit", rewound_commit, frozenset()),
    ("double processing", double_processing, frozenset({"lost input"})),
    ("lost input", lost_input, frozenset()),
    ("hanging transaction", hanging_transaction, frozenset()),
)
