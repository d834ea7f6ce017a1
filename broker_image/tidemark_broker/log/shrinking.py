"""What makes a log shorter: truncation at its end, retention at its start.

A truncation stops everything else on the log; retention moves the bounds first and removes files
afterwards. A truncation that fails half-way leaves files that only opening again can make out.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark_broker.log.errors import LogError
from tidemark_broker.log.files import remove_files
from tidemark_broker.log.flushing import FlushingLog
from tidemark_broker.log.log_starts import Starts
from tidemark_broker.log.retention import RetentionInput, RetentionPlan, plan_retention
from tidemark_broker.log.segment import wall_clock_ms
from tidemark_broker.log.types import SegmentInfo, TieredRetention


class ShrinkingLog(FlushingLog):
    """Truncation and retention; :class:`PartitionLog` is the whole."""

    def truncate_to(self, offset: int) -> bool:
        """T: cut the log so that it ends at ``offset``, or at the start of the batch that holds it.

        At or behind the log's end no record goes, but an epoch that begins at the end does: it is
        one in which this replica led and appended nothing. Whether anything went.
        """
        with self._shaping:
            with self._lock:
                self._check_usable()
                if offset >= self._next_offset:
                    return self._drop_epochs_at_end()
                if offset < self._segments.items[0].base_offset:
                    self.truncate_fully_and_start_at(
                        offset,
                        log_start_offset=min(offset, self._log_start_offset),
                        epochs=self.epochs.entries,
                    )
                    return True
                self._lower_bounds(offset)
                with self._unusable_on_failure(offset):
                    renamed = self._segments.cut_to(offset, self.config.index_interval_bytes)
                self._next_offset = self._segments.active.next_offset
                self._lower_bounds(self._next_offset)
                self._drop_epochs_at_end()
            remove_files(renamed)
            return True

    def _drop_epochs_at_end(self) -> bool:
        kept = self.epochs.truncate_from_end(self._next_offset)
        if kept is self.epochs:
            return False
        self.epochs = kept
        self._save_epochs()
        return True

    def truncate_fully_and_start_at(
        self, offset: int, *, log_start_offset: int, epochs: Sequence[EpochEntry]
    ) -> None:
        """T: drop every local record; the log goes on at ``offset`` with the given log start (what
        lies between is in the tier) and epochs."""
        if log_start_offset > offset:
            raise ValueError(f"log start {log_start_offset} is above the log's end {offset}")
        # A crash in between must not find a log whose first segment is missing.
        ahead = Starts(
            min(self._log_start_offset, log_start_offset), max(self._local_log_start_offset, offset)
        )
        with self._shaping, self._lock, self._recorded_ahead(ahead):
            self._check_usable()
            self._lower_bounds(min(offset, self._log_start_offset))
            renamed = self._replace_all_segments(offset)
            self._log_start_offset = log_start_offset
            self.durable_log_start_offset = min(self.durable_log_start_offset, log_start_offset)
            self._high_watermark = offset
            self._recovery_point = offset
            self.epochs = LeaderEpochs(tuple(epochs)).truncate_from_end(offset)
            self._save_epochs()
        self._persist_checkpoints()
        remove_files(renamed)

    def _replace_all_segments(self, offset: int) -> list[Path]:
        """Begin anew at ``offset``; the renamed files, which are the caller's to remove."""
        with self._unusable_on_failure(0):
            renamed = self._segments.replace_all(offset, wall_clock_ms())
        self._next_offset = self._local_log_start_offset = offset
        return renamed

    @contextmanager
    def _unusable_on_failure(self, offset: int) -> Iterator[None]:
        """A truncation to ``offset`` that fails half-way leaves files that only opening again can
        make out; what lay behind ``offset`` was to go."""
        try:
            yield
        except LogError as error:
            self._failure = f"{error}; the log takes nothing more until it was opened again"
            self._next_offset = min(self._next_offset, offset)
            self._let_go()
            raise

    def _let_go(self) -> None:
        with self._lock:
            self._closed = True
            self._segments.unload_all()

    def apply_retention(self, now_ms: int, *, tiered: TieredRetention | None) -> list[SegmentInfo]:
        """T: let go of the segments that ``log/retention.py`` names; what went.

        Where the log will begin is on record first, or a crash would leave a log that seems to have
        lost its start, and so are the epochs, which only the batches that go may have told; then
        the offsets move, so that reads end at once; then the files go.
        """
        renamed: list[Path] = []
        try:
            with self._shaping:
                return self._retain(now_ms, tiered, renamed)
        finally:
            remove_files(renamed)

    def _retain(
        self, now_ms: int, tiered: TieredRetention | None, renamed: list[Path]
    ) -> list[SegmentInfo]:
        with self._lock:
            self._check_usable()
            plan = self._plan_retention(now_ms, tiered)
            starts = self._starts_after(plan)
            if plan.roll_active and not plan.delete:
                self._segments.roll(self._next_offset, now_ms)
        if not plan.delete:
            return []
        with self._recorded_ahead(starts):
            self._save_epochs_below(starts)
            with self._lock:
                self._check_usable()
                if plan != self._plan_retention(now_ms, tiered):
                    return []  # more was appended meanwhile: the next run decides
                self._carry_out(plan, now_ms)
                self.starts_recorded(starts)
            return [self._take_oldest(renamed) for _ in range(plan.delete)]

    def _save_epochs_below(self, starts: Starts) -> None:
        """T: of what will be in the tier only, and of the last record where none is left to tell
        how far this log has come. Nothing is written without need: retention must be able to go on
        where the disk is full."""
        start, local_start = starts.log_start_offset, starts.local_log_start_offset or 0
        if local_start >= self._next_offset:
            start = min(start, local_start - 1)
        if not self._epoch_file.tells(self.epochs, start, local_start):
            self._save_epochs()

    def _carry_out(self, plan: RetentionPlan, now_ms: int) -> None:
        if plan.roll_active:
            self._segments.roll(self._next_offset, now_ms)
        if plan.log_start_offset is not None:
            self.raise_log_start(plan.log_start_offset)
        if plan.local_log_start_offset is not None:
            self.raise_local_log_start(plan.local_log_start_offset)

    def _starts_after(self, plan: RetentionPlan) -> Starts:
        log_start = max(self.announced_log_start_offset, plan.log_start_offset or 0)
        local_start = max(self._local_log_start_offset, plan.local_log_start_offset or 0)
        return Starts(log_start, max(log_start, local_start))

    def _take_oldest(self, renamed: list[Path]) -> SegmentInfo:
        """One segment at a time: a removal that fails leaves no hole behind."""
        with self._lock:
            self._check_usable()
            info = self._segments.items[0].info(is_active=False)
            renamed += self._segments.take_oldest()
        return info

    def _plan_retention(self, now_ms: int, tiered: TieredRetention | None) -> RetentionPlan:
        return plan_retention(
            RetentionInput(
                segments=self._segments.infos(),
                config=self.config,
                log_start_offset=self._log_start_offset,
                local_log_start_offset=self._local_log_start_offset,
                high_watermark=self._high_watermark,
                now_ms=now_ms,
                tiered=tiered,
            )
        )
