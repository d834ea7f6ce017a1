"""Truncation: records at the end of a log go, because the leader's log has others, or none, there.

It stops everything else on the log. One that fails half-way leaves files that only opening again
can make out.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark_broker.log.bounds import Bounds
from tidemark_broker.log.errors import LogError
from tidemark_broker.log.files import remove_files
from tidemark_broker.log.log_starts import Starts
from tidemark_broker.log.log_state import LogState
from tidemark_broker.log.producer_entry import ProducerBatch
from tidemark_broker.log.segment import wall_clock_ms
from tidemark_broker.log.start_offsets import recorded_ahead


def truncate_to(log: LogState, offset: int) -> bool:
    """T: see :meth:`PartitionLog.truncate_to`."""
    with log.shaping:
        with log.lock:
            log.check_usable()
            if offset >= log.bounds.end:
                return _drop_epochs_at_end(log)
            if offset < log.segments.items[0].base_offset:
                log_start = min(offset, log.bounds.log_start)
                truncate_fully_and_start_at(log, offset, log_start, log.epochs.entries)
                return True
            log.lower_bounds(offset)
            with _unusable_on_failure(log, offset):
                renamed = log.segments.cut_to(offset, log.config.index_interval_bytes)
            end = log.segments.active.next_offset
            assert end <= offset, (end, offset)
            log.lower_bounds(end)
            log.bounds = log.bounds.truncated(end)
            with _unusable_on_failure(log, end):
                log.reload_producers()
            _drop_epochs_at_end(log)
        remove_files(renamed)
        return True


def _drop_epochs_at_end(log: LogState) -> bool:
    kept = log.epochs.truncate_from_end(log.bounds.end)
    if kept is log.epochs:
        return False
    log.epochs = kept
    log.save_epochs()
    return True


def truncate_fully_and_start_at(
    log: LogState,
    offset: int,
    log_start: int,
    epochs: Sequence[EpochEntry],
    producer_snapshot: bytes | None = None,
    recent_batches: Iterable[ProducerBatch] = (),
) -> None:
    """T: see :meth:`PartitionLog.truncate_fully_and_start_at`."""
    if log_start > offset:
        raise ValueError(f"log start {log_start} is above the log's end {offset}")
    former = log.bounds
    # A crash in between must not find a log whose first segment is missing.
    ahead = Starts(min(former.log_start, log_start), max(former.local_start, offset))
    with log.shaping, log.lock, recorded_ahead(log, ahead):
        log.check_usable()
        log.lower_bounds(min(offset, log.bounds.log_start))
        renamed = replace_segments(log, offset, producer_snapshot)
        log.bounds = Bounds.empty(offset, log_start=log_start)
        if producer_snapshot is not None:
            log.reload_producers()
            log.producers.recall(recent_batches)
        log.start_record = log.start_record.not_durable_above(log_start)
        log.epochs = LeaderEpochs(tuple(epochs)).truncate_from_end(offset)
        log.save_epochs()
    log.checkpoint()
    remove_files(renamed)


def replace_segments(
    log: LogState, offset: int, producer_snapshot: bytes | None = None
) -> list[Path]:
    """T, holding the lock: one empty segment at ``offset`` instead of all that are there; their
    renamed files, which are the caller's to remove."""
    with _unusable_on_failure(log, 0):
        renamed = log.segments.replace_all(offset, wall_clock_ms(), producer_snapshot)
    log.producers.clear()
    return renamed


@contextmanager
def _unusable_on_failure(log: LogState, kept_to: int) -> Iterator[None]:
    """What lies behind ``kept_to`` was to go: it is not missed when the log is opened again."""
    try:
        yield
    except LogError as error:
        log.failure = f"{error}; the log takes nothing more until it was opened again"
        log.kept_to = kept_to
        log.bounds = log.bounds.truncated(max(kept_to, log.bounds.high_watermark))
        log.let_go()
        raise
