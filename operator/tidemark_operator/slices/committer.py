"""Group commit: queued decisions are made together on one draft and written at once.

The rule is *persist before acting*: a decision's result reaches its caller only after everything it
changed is known to be stored. The state does not change while a group is being written; decisions
that arrive meanwhile form the next group. If another writer changed a slice, the decisions that
touched it are repeated on what is now stored.

At the start of a term the slices may be older than the brokers' states. Until the brokers have
reported, a decision that would change a slice is delayed and made again.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

from tidemark_operator.controller.state.commit import (
    Draft,
    GroupCommit,
    SliceFull,
    SliceWrite,
    plan,
)
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.events import Event
from tidemark_operator.controller.state.model import BrokerInfo, PartitionRow, RowKey, Tombstone
from tidemark_operator.kube.errors import KubeError
from tidemark_operator.leadership.terms import NotLeading, TermEnded
from tidemark_operator.slices.slice_store import SliceStore

logger = logging.getLogger(__name__)

T = TypeVar("T")
GROUP_MAX = 4096
RETAKEN_MAX = 8
#: Maximum time for which a group waits for more decisions while it grows.
LINGER_S = 3.0
GROWS_WITHIN_S = 0.1
#: Pause before a decision is repeated that could not be stored and has no other retry.
AGAIN_S = 1.0


class DecisionFailed(RuntimeError):
    """A decision could not be persisted because other writers kept changing the slice.

    Try later.
    """


class Gate(Protocol):
    """Whether slices may be written yet."""

    @property
    def are_complete(self) -> bool:
        """Return whether they may be written now."""

    async def wait(self) -> None:
        """Wait until they may be written."""


class _ReportsPending(Exception):
    """A decision would change a slice before it may."""


class TrackingDraft(Draft):
    """Draft that tracks the slices and brokers of the current decision.

    Included are those that it has read as changed by an earlier decision of the group. If these
    cannot be stored, its own result (such as an answer with such a row) is invalid.
    """

    def __init__(self, state: ControllerState) -> None:
        super().__init__(state)
        self.touched: set[int] = set()
        self.touched_brokers: set[int] = set()

    @property
    def is_empty(self) -> bool:
        """Return whether nothing was changed and there is no event."""
        return not (self.touched or self.touched_brokers or self.events)

    def begin(self) -> None:
        """Start a new decision."""
        self.touched = set()
        self.touched_brokers = set()

    def row(self, key: RowKey) -> PartitionRow | None:
        if key in self.rows or key in self.removed:
            self.touched.add(self.state.slice_index(key))
        return super().row(key)

    def put_row(self, row: PartitionRow) -> None:
        self.touched.add(self.state.slice_index(row.key))
        super().put_row(row)

    def settle_row(self, row: PartitionRow) -> None:
        self.touched.add(self.state.slice_index(row.key))
        super().settle_row(row)

    def remove_row(self, key: RowKey) -> None:
        self.touched.add(self.state.slice_index(key))
        super().remove_row(key)

    def put_tombstone(self, index: int, tombstone: Tombstone) -> None:
        self.touched.add(index)
        super().put_tombstone(index, tombstone)

    def drop_tombstone(self, index: int, topic_id: uuid.UUID) -> None:
        self.touched.add(index)
        super().drop_tombstone(index, topic_id)

    def put_record(self, topic_id: uuid.UUID, partitions: int) -> None:
        self.touched.add(self.state.record_home(topic_id))
        super().put_record(topic_id, partitions)

    def put_broker(self, broker: BrokerInfo) -> None:
        self.touched_brokers.add(broker.node_id)
        super().put_broker(broker)


@dataclass(slots=True, eq=False)
class _PendingDecision(Generic[T]):
    """A queued decision, with what its last attempt touched."""

    decide: Callable[[Draft], T]
    answer: asyncio.Future[T]
    urgent: bool = True
    taken: int = 0
    result: Any = None
    slices: frozenset[int] = frozenset()
    brokers: frozenset[int] = frozenset()
    events: tuple[Event, ...] = ()


@dataclass(frozen=True, slots=True)
class Committed:
    """Changes of a stored group, already applied to the state."""

    slices: frozenset[int]
    brokers: frozenset[int]
    events: tuple[Event, ...]
    decisions: int
    seconds: float


class CommitListener(Protocol):
    """Receiver of commits, which performs the rest of them."""

    def slice_stored(self, state: ControllerState, write: SliceWrite) -> None:
        """Note that a slice's write took effect; called before the state advances."""

    async def write_broker(self, drafted: BrokerInfo) -> bool:
        """Persist a registration and apply it to the state; return False to decide again.

        Raises ``KubeError``.
        """

    def committed(self, committed: Committed) -> None:
        """Note a stored group; called before its decisions get their answers."""


class Committer:
    """The single queue of decisions of a term. Nothing is decided before ``run``."""

    _listener: CommitListener

    def __init__(
        self,
        state: ControllerState,
        store: SliceStore,
        *,
        busy: Callable[[], bool],
        reports: Gate,
    ) -> None:
        """Prepare the committer; :meth:`run` starts it.

        ``busy``: returns whether many reconciliations are in progress, so that a group is worth a
        short wait. ``reports``: complete once brokers have reported; no slice is written before.
        """
        self.state = state
        self._reports = reports
        self._store = store
        #: Decisions that wait, in order.
        self._line: list[_PendingDecision[Any]] = []
        #: Whether the load is so high that a write should wait to be shared.
        self.is_busy = busy
        self._wake = asyncio.Event()  # Set when a decision waits.
        #: Set when a decision waits that should not wait for others.
        self._urgent = asyncio.Event()
        #: The exception that ended the term, None before.
        self._ended: BaseException | None = None
        self.groups = 0  # Stored groups so far, for metrics.

    async def decide(self, decide: Callable[[Draft], T], *, urgent: bool = True) -> T:
        """Make a decision and wait until it is stored.

        ``decide`` may be called several times, each time on a fresh draft. An exception of it is
        raised here and changes nothing. A decision that is not ``urgent`` may wait briefly for
        others under load.
        """
        while True:
            try:
                return await self._decide(decide, urgent)
            except _ReportsPending:
                await self._reports.wait()

    async def _decide(self, decide: Callable[[Draft], T], urgent: bool) -> T:
        if self._ended is not None:
            raise NotLeading("the term has ended")
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._line.append(_PendingDecision(decide, answer, urgent))
        self._wake.set()
        if urgent:
            self._urgent.set()
        return await answer

    def preview(self, decide: Callable[[Draft], T]) -> T | None:
        """Return the result of a decision that should change nothing, without waiting.

        None if it has to be stored (:meth:`decide`), or the term has ended. Changes of a group in
        progress are not visible yet; its topics are woken when it is stored.
        """
        if self._ended is not None:
            return None
        draft = TrackingDraft(self.state)
        result = decide(draft)
        return result if draft.is_empty else None

    async def try_decide(self, decide: Callable[[Draft], T], what: str) -> T | None:
        """Make a decision that is repeated anyway if it cannot be stored now; None then.

        These are clients' requests, whose answer reports the failure, and the periodic decisions.
        """
        try:
            return await self.decide(decide)
        except (TermEnded, DecisionFailed) as error:
            logger.info("%s was not decided: %s", what, error)
            return None

    async def until_decided(
        self, decide: Callable[[Draft], T], what: str, *, holds: Callable[[], bool] = lambda: True
    ) -> T | None:
        """Repeat a decision that nothing else would retry, until it is stored; return its result.

        ``what``: for the log. Returns None if ``holds()`` is False, so that the decision is no
        longer needed, or if the term has ended.
        """
        while holds():
            try:
                return await self.decide(decide)
            except TermEnded as error:
                logger.info("%s was not decided: %s", what, error)
                return None
            except DecisionFailed as error:
                logger.warning("%s is decided again: %s", what, error)
                await asyncio.sleep(AGAIN_S)
        return None

    async def run(self, listener: CommitListener) -> None:
        """Serve the queue until the term ends (raises why) or the task is cancelled."""
        self._listener = listener
        try:
            while True:
                await self._wake.wait()
                self._wake.clear()
                while self._line:
                    await self._await_more()
                    await self._group()
        except BaseException as error:
            self._end(error)
            raise

    async def _await_more(self) -> None:
        """Let a group of placements grow, so that 1,000 Topics applied at once cost few writes."""
        self._urgent.clear()
        # Urgent decisions (elections, registrations) never wait for others.
        if any(waiting.urgent for waiting in self._line) or not self.is_busy():
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LINGER_S):
                while await self._has_more_soon():
                    pass

    async def _has_more_soon(self) -> bool:
        """Return whether more decisions join the queue, none of them urgent."""
        before = len(self._line)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(GROWS_WITHIN_S):
                await self._urgent.wait()
                return False
        return len(self._line) > before

    def _end(self, error: BaseException) -> None:
        self._ended = error
        for waiting in self._line:
            if not waiting.answer.done():
                waiting.answer.set_exception(NotLeading(f"the term has ended: {error}"))
        self._line.clear()

    # ------------------------------------------------------------ one group

    async def _group(self) -> None:
        group, self._line = self._line[:GROUP_MAX], self._line[GROUP_MAX:]
        # A caller that was cancelled needs no decision.
        await self._commit([waiting for waiting in group if not waiting.answer.done()])

    async def _commit(self, group: list[_PendingDecision[Any]]) -> None:
        """Decide a group on one draft, and store the result.

        If a slice would be full, the group is halved until the one decision remains that does not
        fit; it fails with ``SliceFull``.
        """
        draft, taken = self._draft_group(group)
        if not taken:
            return
        # Which decision overflows the slice is unknown, so halving isolates it.
        try:
            commit = plan(draft)
        except SliceFull as error:
            if len(taken) == 1:
                taken[0].answer.set_exception(error)
                return
            half = len(taken) // 2
            await self._commit(taken[:half])
            await self._commit(taken[half:])
            return
        await self._store_group(taken, commit)

    async def _store_group(self, taken: list[_PendingDecision[Any]], commit: GroupCommit) -> None:
        """Store the changes of a group, and answer those decisions that were stored."""
        started_s = time.monotonic()
        try:
            slices = await self._store.write_all(
                self.state, commit.writes, slice_stored=self._listener.slice_stored
            )
            brokers = await self._write_brokers(commit, slices)
        # The outcome of the writes is unknown: no caller may count its decision as made.
        except BaseException as error:
            for waiting in taken:
                if not waiting.answer.done():
                    waiting.answer.set_exception(NotLeading(f"the term has ended: {error}"))
            raise
        self.groups += 1
        self._finish(taken, slices, brokers, time.monotonic() - started_s)

    def _draft_group(
        self, group: list[_PendingDecision[Any]]
    ) -> tuple[TrackingDraft, list[_PendingDecision[Any]]]:
        """Run a group's decisions on one draft; return the draft and the successful decisions.

        A decision that raises gets its exception. It may have left half a change in the draft: then
        the earlier decisions run again on a new draft, and the later ones wait.
        """
        draft = TrackingDraft(self.state)
        taken: list[_PendingDecision[Any]] = []
        for position, waiting in enumerate(group):
            draft.begin()
            earlier_events = len(draft.events)
            try:
                waiting.result = waiting.decide(draft)
                self._require_reports(draft)
            except Exception as error:  # noqa: BLE001 - belongs to the caller of this decision
                waiting.answer.set_exception(error)
                # It changed nothing, so the draft is still valid.
                if not draft.touched and not draft.touched_brokers:
                    continue
                self._line[:0] = group[position + 1 :]
                return self._draft_group(taken)
            waiting.slices = frozenset(draft.touched)
            waiting.brokers = frozenset(draft.touched_brokers)
            waiting.events = tuple(draft.events[earlier_events:])
            taken.append(waiting)
        return draft, taken

    def _require_reports(self, draft: TrackingDraft) -> None:
        """Delay a decision that changes a slice until the brokers have reported."""
        if draft.touched and not self._reports.are_complete:
            raise _ReportsPending

    async def _write_brokers(self, commit: GroupCommit, slices: dict[int, bool]) -> dict[int, bool]:
        """Write registrations after the slices; none if a slice was not stored.

        A persisted registration implies that the ISRs were left.
        """
        if not commit.brokers:
            return {}
        if not all(slices.values()):
            return {broker.node_id: False for broker in commit.brokers}
        stored = await asyncio.gather(*(self._store_broker(broker) for broker in commit.brokers))
        return {b.node_id: done for b, done in zip(commit.brokers, stored, strict=True)}

    async def _store_broker(self, broker: BrokerInfo) -> bool:
        try:
            return await self._listener.write_broker(broker)
        except KubeError as error:
            logger.warning(
                "the registration of broker %d was not stored: %s", broker.node_id, error
            )
            return False

    def _finish(
        self,
        taken: list[_PendingDecision[Any]],
        slices: dict[int, bool],
        brokers: dict[int, bool],
        seconds: float,
    ) -> None:
        """Answer the callers of stored decisions, and queue the other decisions again.

        ``slices`` and ``brokers``: whether the write of each slice and registration was stored.
        """
        failed_slices = {index for index, done in slices.items() if not done}
        failed_brokers = {node for node, done in brokers.items() if not done}
        done: list[_PendingDecision[Any]] = []
        again: list[_PendingDecision[Any]] = []
        # A decision fails if any slice or broker that it touched was not stored.
        for waiting in taken:
            failed = waiting.slices & failed_slices or waiting.brokers & failed_brokers
            (again if failed else done).append(waiting)
        # The listener publishes to brokers before callers act on their results.
        self._listener.committed(
            Committed(
                slices=frozenset(slices) - failed_slices,
                brokers=frozenset(brokers) - failed_brokers,
                events=tuple(event for waiting in done for event in waiting.events),
                decisions=len(done),
                seconds=seconds,
            )
        )
        for waiting in done:
            if not waiting.answer.done():
                waiting.answer.set_result(waiting.result)
        # Failed decisions go to the front, before those that arrived later.
        self._line[:0] = [waiting for waiting in again if self._may_retry(waiting)]

    @staticmethod
    def _may_retry(waiting: _PendingDecision[Any]) -> bool:
        waiting.taken += 1
        if waiting.taken < RETAKEN_MAX:
            return True
        if not waiting.answer.done():
            waiting.answer.set_exception(DecisionFailed("other writers kept changing the slices"))
        return False
