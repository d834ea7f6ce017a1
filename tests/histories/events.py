"""Operations of clients, in the order in which they noticed them, for a later check.

Each operation is an invocation, and a completion that shares its id: ``ok`` (it took effect),
``fail`` (it certainly did not), ``info`` (unknown). An operation without a completion is of unknown
outcome as well: its client ended before there was an answer. A process (Jepsen's word) is one
instance of one client; its successor has another name.

=============  ==================================================================================
``f``          value of the invocation; of the completion
=============  ==================================================================================
``send``       place, value, level, txn ("" outside), origin (group, place, offset); offset, None
               if the broker returned none
``begin``      txn
``offsets``    txn, group, offsets by place: to be committed with that transaction
``end``        txn, commit (else abort)
``poll``       level; records by place: pairs of offset and value
``position``   offsets by place from which this process reads on, None where it does not know;
               group, final; a completion alone
``lost``       places that this process reads no more; a completion alone
``commit``     group, offsets by place
``committed``  group, final; offsets by place, None where there is none
``ends``       at the end of a run, ``stable`` and ``high`` by place: the last stable offset and the
               high watermark; a completion alone
``fault``      kind, target; a completion alone
``raised``     this process continues in another epoch; a completion alone
``hung``       a call of the client's library did not return; a completion alone
``said``       line: what librdkafka logged of an idempotent producer; a completion alone, the last
               ones of a round: see :mod:`tests.histories.librdkafka_logs`
=============  ==================================================================================

A *place* is a partition, ``topic-number``. ``level`` says what was promised: see
:mod:`tests.histories.levels`. Times are µs since the run began, of one clock for all.
"""

import itertools
import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from io import FileIO
from pathlib import Path
from typing import Any, Self

INVOKE, OK, FAIL, INFO = "invoke", "ok", "fail", "info"


@dataclass(frozen=True, slots=True)
class HistoryEvent:
    """One line of a history."""

    id: int
    type: str
    f: str
    process: str
    time: int
    value: Mapping[str, Any]

    def line(self) -> str:
        """As JSON, without the newline."""
        return json.dumps(
            {
                "id": self.id,
                "type": self.type,
                "f": self.f,
                "process": self.process,
                "time": self.time,
                **self.value,
            }
        )

    @classmethod
    def of(cls, line: str) -> Self:
        """The event of a line. Raises ValueError for anything else."""
        # A stored history may come from an older version of the workload, so fields are checked.
        try:
            fields: dict[str, Any] = json.loads(line)
            number, kind = fields.pop("id"), fields.pop("type")
            f, process, time_us = fields.pop("f"), fields.pop("process"), fields.pop("time")
        except (KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"no event of a history: {line[:80]!r}") from error
        return cls(number, kind, f, process, time_us, fields)


def store(events: Iterable[HistoryEvent], path: Path) -> None:
    """One event a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as out:
        out.writelines(f"{event.line()}\n" for event in events)


def load(path: Path) -> list[HistoryEvent]:
    """Load a history that :func:`store` or a :class:`HistoryRecorder` wrote.

    An incomplete last line is skipped: its process was killed while it wrote.
    """
    with path.open(encoding="utf-8") as lines:
        return [HistoryEvent.of(line) for line in lines if line.endswith("\n")]


class HistoryRecorder:
    """Records events from many threads.

    ``events_max``: from then on :attr:`is_full` tells the workload to end; pending operations and
    the final reads are still recorded. ``clock``: ns, and ``began_ns`` its value at the start of
    the run; ``first_id``: keeps the ids of two recorders of one run apart; ``into``: an unbuffered
    file, which has the recorded events even if the process dies.
    """

    def __init__(
        self,
        events_max: int,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        began_ns: int | None = None,
        first_id: int = 1,
        into: FileIO | None = None,
    ) -> None:
        self._events: list[HistoryEvent] = []
        self._events_max = events_max
        self._ids = itertools.count(first_id)
        self._clock = clock
        self._began_ns = clock() if began_ns is None else began_ns
        self._into = into

    @property
    def events(self) -> list[HistoryEvent]:
        """Events by time: two threads may have added theirs the other way round."""
        return sorted(self._events, key=lambda event: event.time)

    @property
    def is_full(self) -> bool:
        """Whether only pending operations may still be recorded."""
        return len(self._events) >= self._events_max

    def invoke(self, process: str, f: str, **value: Any) -> "RecordedOperation":
        """An operation begins now."""
        operation = RecordedOperation(self, next(self._ids), process, f)
        self.add(operation.id, INVOKE, f, process, value)
        return operation

    def now_us(self) -> int:
        """Since the run began."""
        return (self._clock() - self._began_ns) // 1000

    def point(self, process: str, f: str, *, at_us: int | None = None, **value: Any) -> None:
        """Record an observation at one moment, now by default, as a single completion."""
        self.add(next(self._ids), OK, f, process, value, at_us)

    def add(
        self,
        number: int,
        kind: str,
        f: str,
        process: str,
        value: dict[str, Any],
        at_us: int | None = None,
    ) -> None:
        """One event, at the present time. Without a lock: confluent-kafka may raise in whatever
        runs next what went wrong in a callback of its own, and the lock would stay taken."""
        event = HistoryEvent(
            number, kind, f, process, self.now_us() if at_us is None else at_us, value
        )
        self._events.append(event)
        if self._into is not None:
            self._into.write(f"{event.line()}\n".encode())


class RecordedOperation:
    """One that has begun. It is completed once; what comes after that counts for nothing."""

    def __init__(self, recorder: HistoryRecorder, number: int, process: str, f: str) -> None:
        self.id = number
        self._recorder = recorder
        self._process = process
        self._f = f
        self._open = True

    def ok(self, **value: Any) -> None:
        """Record that the operation took effect."""
        self._complete(OK, value)

    def fail(self, **value: Any) -> None:
        """Record that it took no effect and will not."""
        self._complete(FAIL, value)

    def info(self, **value: Any) -> None:
        """Record that its effect is unknown."""
        self._complete(INFO, value)

    def _complete(self, kind: str, value: dict[str, Any]) -> None:
        if self._open:
            self._open = False
            self._recorder.add(self.id, kind, self._f, self._process, value)


def shown(events: Iterable[HistoryEvent], ids: Iterable[int], text: str) -> list[str]:
    """The lines of some operations, in the order in which they happened. Of what polls returned,
    the records that ``text`` names, and those right beside them."""
    wanted = frozenset(ids)
    words = frozenset(re.split(r"[\s,;]+", text))
    # The text names offsets and values, which tells the relevant records of a poll.
    return [_short(event, words).line() for event in events if event.id in wanted]


def _short(event: HistoryEvent, words: frozenset[str]) -> HistoryEvent:
    if "records" not in event.value:
        return event
    records = {}
    for place, pairs in event.value["records"].items():
        named = [at for at, (offset, value) in enumerate(pairs) if {str(offset), value} & words]
        # Neighbours show whether a record was skipped or repeated.
        near = {item for at in named for item in (at - 1, at, at + 1)}
        if kept := [pair for at, pair in enumerate(pairs) if at in near]:
            records[place] = kept
    return replace(event, value={**event.value, "records": records})
