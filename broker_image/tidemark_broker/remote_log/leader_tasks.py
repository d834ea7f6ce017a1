"""Tasks of a leader for one partition during its term: settle, then copy, merge and expire.

A term is a leader epoch with a tiering state. A new term has new tasks, and its claim fences the
work of the old one that is still in progress. Tasks end only if they are cancelled, fenced, or the
topic is deleted. Any other error becomes a reason in the status and a growing pause (500 ms to 30
s, with jitter), which ends early when the store is available again.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable

from tidemark.backoff import Backoff
from tidemark.reasons import Reason
from tidemark.tier.metadata.head import ManifestFenced, TopicDeleted
from tidemark.tier.metadata.manifest import PageNotFound
from tidemark_broker.log import LogConfig
from tidemark_broker.purgatory import DelayedOperationKey, PartitionChange
from tidemark_broker.remote_log.copier import Copier
from tidemark_broker.remote_log.disablement import delete_remote_part
from tidemark_broker.remote_log.expirer import Expirer
from tidemark_broker.remote_log.head_writer import HeadWriter, LeaderTerm
from tidemark_broker.remote_log.manager_state import ManagerState
from tidemark_broker.remote_log.merger import Merger
from tidemark_broker.remote_log.tier_failure import (
    RETRIED,
    CustomMetadataTooLarge,
    TierFailure,
    failure_of,
    jittered,
)
from tidemark_broker.replication.partition import Partition

logger = logging.getLogger(__name__)

SETTLE, COPY, EXPIRE, MERGE = "settle", "copy", "expire", "merge"


class LeaderTasks:
    """Tasks of one term.

    ``settled`` is set once the manifest's head is claimed in this term. In a disablement with
    policy Delete (KIP-950) it is set once the leader's part may be acknowledged.
    """

    def __init__(self, shared: ManagerState, partition: Partition, term: LeaderTerm) -> None:
        """Create the tasks of a term; :meth:`start` runs them."""
        self.shared = shared
        self.partition = partition
        self.term = term
        self.writer = HeadWriter(shared, partition, term)
        self.settled = asyncio.Event()
        self.ended = False
        #: Current failures by task (SETTLE, COPY, EXPIRE or MERGE).
        self.failures: dict[str, TierFailure] = {}
        self._copier = Copier(self.writer)
        self._expirer = Expirer(self.writer)
        self._merger = Merger(self.writer, self._copier)
        self._task: asyncio.Task[None] | None = None
        self._changed = asyncio.Event()

    @property
    def failure(self) -> TierFailure | None:
        """Most important current failure."""
        order = (SETTLE, COPY, EXPIRE, MERGE)
        return next((self.failures[k] for k in order if k in self.failures), None)

    def start(self) -> None:
        """Start the term in its own task."""
        self._task = asyncio.get_running_loop().create_task(
            self._run(), name=f"remote log of {self.partition.tp}"
        )

    def cancel(self) -> "asyncio.Task[None] | None":
        """End the term at once; return the task that still has to end, if any."""
        # Results of a commit in progress belong to a term that is over.
        self.writer.retire()
        self._end()  # a task that is cancelled before its first step does not reach its finally
        if self._task is not None and not self._task.done():
            self._task.cancel()
            return self._task
        return None

    def _end(self) -> None:
        self.ended = True
        self._changed.set()

    async def wait_settled(self) -> TierFailure | None:
        """Wait until settled (None), or until a failure is known."""
        # A disablement request returns with the reason instead of waiting for the store.
        while not self.settled.is_set() and not self.ended and not self.failures:
            self._changed.clear()
            await self._changed.wait()
        if self.settled.is_set():
            return None
        return self.failure or TierFailure(
            Reason.FENCED, f"{self.partition.tp}: the term has ended"
        )

    async def _run(self) -> None:
        """Claim the manifest, then copy, merge and expire until the term ends."""
        try:
            # Nothing is copied or expired before the claim: another leader might still write.
            await self._repeat(SETTLE, self._settle_once, until_done=True)
            self.settled.set()
            self._changed.set()
            # A fenced task ends the other one too: both work under the same claim.
            async with asyncio.TaskGroup() as group:
                if self.term.tiering.copies:
                    group.create_task(self._repeat(COPY, self._copy_once))
                    group.create_task(self._repeat(MERGE, self._merge_once))
                group.create_task(self._repeat(EXPIRE, self._expire_once))
        except* (ManifestFenced, TopicDeleted) as errors:
            self._failed(SETTLE, _first_of(errors))
        finally:
            self._end()

    async def _settle_once(self) -> None:
        await self.writer.open()
        if self.term.tiering.deletes:
            await delete_remote_part(self.writer)
        else:
            await self.writer.claim()

    async def _copy_once(self) -> None:
        config = self.partition.log.config
        if config.tidemark_remote_copy_paused:
            await self._wait_for_config(COPY, config)
        elif not await self._copier.copy_next():
            await self._wait_for_segment()

    async def _merge_once(self) -> None:
        config = self.partition.log.config
        # A pause concerns all writes of data. Merging is not urgent: an interval later suffices.
        if config.tidemark_remote_copy_paused or not await self._merger.merge_next():
            await self._wait_for_config(MERGE, config)

    async def _expire_once(self) -> None:
        """Do one expiry run, and wait for the next interval if nothing is left to delete.

        A deletion of records, or a high watermark that the manifest's log start waits for, ends the
        wait early.
        """
        if await self._expirer.run_once():
            return
        self._clear(EXPIRE)
        tp, writer = self.partition.tp, self.writer
        # A head's log start above the high watermark must be applied as soon as that rises.
        behind = writer.awaits_commit
        await self.shared.wait(
            [(PartitionChange.HIGH_WATERMARK if behind else PartitionChange.LOW_WATERMARK, tp)],
            lambda: self._expirer.log_start_moved or (behind and not writer.awaits_commit),
            self.shared.settings.interval_s,
        )

    async def _wait_for_segment(self) -> None:
        """Wait until a segment may be eligible for a copy, at most one task interval.

        It waits for one of four events: the controller knows of the manifest, the closed segment
        becomes stable, the topic's delay of its copy ends, or the active segment is closed.
        """
        self._clear(COPY)
        partition, wait = self.partition, self.shared.wait
        interval_s = self.shared.settings.interval_s
        # Nothing may be copied before the controller knows of the head.
        if partition.row is None or not partition.row.manifest:
            await wait(
                [(PartitionChange.HIGH_WATERMARK, partition.tp)], self._manifest_known, interval_s
            )
            return
        # A closed segment waits for the last stable offset to reach its end.
        stable, log = self._copier.stable_from(), partition.log
        if stable is not None and log.last_stable_offset < stable:
            await wait(
                [(PartitionChange.HIGH_WATERMARK, partition.tp)],
                lambda: log.last_stable_offset >= stable,
                interval_s,
            )
            return
        # The topic delays the copy. A delay by bytes is examined once in an interval.
        if stable is not None:
            await self._wait_for_config(COPY, log.config, self._copier.delay_s())
            return
        # All closed segments are copied.
        await self._wait_for_close()

    async def _wait_for_close(self) -> None:
        """Wait until the active segment is closed, and close it if the topic's maximum lag demands
        it.

        Only then: while a closed segment waits, another one would not be copied earlier, and an
        unavailable store would fill the disk with small segments.
        """
        partition, copier = self.partition, self._copier
        log, tp = partition.log, partition.tp
        config, high_watermark = log.config, log.high_watermark
        interval_s = self.shared.settings.interval_s
        keys: list[DelayedOperationKey] = [
            (PartitionChange.SEGMENT_ROLLED, tp),
            (PartitionChange.CONFIG, tp),
        ]
        closes_early = config.limits_lag_time and copier.may_close_early
        records = copier.waiting() if closes_early else None
        if records is not None:
            # Records that arrive meanwhile are younger, so nothing needs an earlier look.
            due_s = copier.until_close_s(records)
            if due_s <= 0:
                copier.close_active()
                return
            interval_s = min(interval_s, due_s)
        elif closes_early:
            # The next committed record starts the time.
            keys.append((PartitionChange.HIGH_WATERMARK, tp))
        await self.shared.wait(
            keys,
            lambda: (
                copier.stable_from() is not None
                or log.config is not config
                or (records is None and log.high_watermark > high_watermark)
            ),
            interval_s,
        )

    async def _wait_for_config(
        self, name: str, config: LogConfig, most_s: float = math.inf
    ) -> None:
        """Wait without a failure of the task ``name`` until the topic's configuration changes, at
        most one task interval and ``most_s``.
        """
        self._clear(name)
        log = self.partition.log
        await self.shared.wait(
            [(PartitionChange.CONFIG, self.partition.tp)],
            lambda: log.config is not config,
            min(most_s, self.shared.settings.interval_s),
        )

    def _manifest_known(self) -> bool:
        row = self.partition.row
        return row is not None and row.manifest

    async def _repeat(
        self, name: str, work: Callable[[], Awaitable[None]], *, until_done: bool = False
    ) -> None:
        """Repeat ``work`` with backoff after failures: forever, or until it succeeds.

        ``name`` is the key of its failure in ``failures``. With ``until_done`` the first success
        ends the loop. Being fenced, a deleted topic and CustomMetadataTooLarge end it in any case.
        The first two are raised.
        """
        backoff = self._fresh_backoff()
        while True:
            try:
                await work()
            except (ManifestFenced, TopicDeleted):
                raise
            # A retry would fail the same way until the configuration changes (KIP-917).
            except CustomMetadataTooLarge as error:
                self._failed(name, error)
                return
            # Everything else is reported in the status and retried after a pause.
            except Exception as error:
                if not isinstance(error, RETRIED):
                    logger.exception("%s: %s failed unexpectedly", self.partition.tp, name)
                self._failed(name, error)
                # A page that is missing may be named by an outdated head only.
                if isinstance(error, PageNotFound):
                    self.writer.mark_outdated()
                backoff = await self._pause(backoff)
                continue
            self._clear(name)
            backoff = self._fresh_backoff()
            if until_done:
                return

    def _fresh_backoff(self) -> Backoff:
        settings = self.shared.settings
        return Backoff(first_s=settings.backoff_s, most_s=settings.backoff_max_s)

    async def _pause(self, backoff: Backoff) -> Backoff:
        """Wait after a failure; return the backoff for the next one.

        The wait ends early when the store becomes available again.
        """
        context, guard = self.shared.context, self.shared.guard
        now_s = context.monotonic()
        backoff = backoff.failed(now_s)
        # Read before the wait, so that a recovery in between ends it.
        changes = guard.changes
        await self.shared.wait(
            [self.shared.store_key],
            lambda: guard.changes != changes,
            jittered(backoff.until_s - now_s, self.shared.settings.jitter),
        )
        return backoff

    def _failed(self, name: str, error: BaseException) -> None:
        failure = failure_of(error)
        # A repeated failure is logged once.
        if self.failures.get(name) != failure:
            fenced = isinstance(error, ManifestFenced | TopicDeleted)
            level = logging.INFO if fenced else logging.WARNING
            logger.log(level, "%s: %s: %s", self.partition.tp, failure.reason, failure.message)
        self.failures[name] = failure
        self._changed.set()
        self.shared.guard.suspect(error)

    def _clear(self, name: str) -> None:
        if self.failures.pop(name, None) is not None:
            logger.info("%s: %s works again", self.partition.tp, name)


def _first_of(errors: BaseExceptionGroup[BaseException]) -> BaseException:
    """Return an exception of a group, however deep."""
    first = errors.exceptions[0]
    return _first_of(first) if isinstance(first, BaseExceptionGroup) else first
