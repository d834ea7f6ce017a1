"""Truncation: removal of records at the end of a log that the leader's log does not have.

A truncation stops everything else on the log. One that fails halfway leaves files that only a
reopening can interpret.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs
from tidemark_broker.log.bounds import LogBounds, Starts
from tidemark_broker.log.errors import LogError
from tidemark_broker.log.files import remove_files
from tidemark_broker.log.partition_log import PartitionLog
from tidemark_broker.log.producer_entry import ProducerBatch
from tidemark_broker.log.segment import wall_clock_ms
from tidemark_broker.log.start_offsets import recorded_before_removal


def truncate_to(log: PartitionLog, offset: int) -> bool:
    """Remove the records from ``offset`` on; return whether anything was removed. Blocks.

    The log is cut at the start of the batch that contains the offset. Leader epochs that start at
    or above the new end are removed too. At or above the log end no record is removed, but an epoch
    that starts at the end is: this replica led in it and appended nothing.
    """
    renamed: list[Path] = []
    try:
        with log.shaping:
            # Find the cut: within a batch it is the batch's first offset.
            with log.lock:
                log.check_usable()
                is_at_end = offset >= log.bounds.end
                is_below_all = offset < log.segments.items[0].base_offset
                if not is_at_end and not is_below_all:
                    with _unusable_on_failure(log, offset):
                        end = log.segments.end_when_cut_to(offset)
            if is_at_end:
                return _drop_epochs_at_end(log)
            # Every local record is above the offset, so nothing local remains.
            if is_below_all:
                log_start = min(offset, log.bounds.log_start)
                truncate_fully_and_start_at(
                    log, offset, log_start_offset=log_start, epochs=log.epochs.entries
                )
                return True
            # Record the cut first, without the lock, so that appends and checkpoints continue.
            with recorded_before_removal(log, cut_to=end), log.lock:
                log.check_usable()
                log.lower_bounds(end)
                with _unusable_on_failure(log, end):
                    renamed = log.segments.cut_to(end, log.config.index_interval_bytes)
                    assert log.segments.active.next_offset == end, (log.segments.active, end)
                    log.bounds = log.bounds.truncated(end)
                    log.reload_producers()
            # The new epochs go to disk while the caller still holds ``shaping``.
            _drop_epochs_at_end(log)
            return True
    finally:
        remove_files(renamed)


def _drop_epochs_at_end(log: PartitionLog) -> bool:
    """Drop epochs that start at the log end. Blocks. The caller holds ``shaping``."""
    with log.lock:
        kept = log.epochs.truncate_from_end(log.bounds.end)
        if kept is log.epochs:
            return False
        log.epochs = kept
    log.save_epochs()
    return True


def truncate_fully_and_start_at(
    log: PartitionLog,
    offset: int,
    *,
    log_start_offset: int,
    epochs: Sequence[EpochEntry],
    producer_snapshot: bytes | None = None,
    recent_batches: Iterable[ProducerBatch] = (),
) -> None:
    """Remove all local records and restart the log empty at ``offset``. Blocks.

    Records between ``log_start_offset`` and ``offset`` are in the tier, and ``epochs`` are their
    leader epochs. ``producer_snapshot``: content of a ``.snapshot`` file with the producers' state
    at ``offset``, None for none. ``recent_batches``: producers' batches before it, since the
    snapshot has only each producer's last one.
    """
    if log_start_offset > offset:
        raise ValueError(f"log start {log_start_offset} is above the log's end {offset}")
    renamed: list[Path] = []
    try:
        with log.shaping:
            former = log.bounds
            # A crash in between must not find a log whose first segment is missing. Everything that
            # needs disk space is written before the first file is deleted: a full disk leaves the
            # log unchanged.
            ahead = Starts(min(former.log_start, log_start_offset), max(former.local_start, offset))
            new_epochs = LeaderEpochs(tuple(epochs)).truncate_from_end(offset)
            cut_to = min(offset, former.log_start)
            with (
                recorded_before_removal(log, ahead, cut_to=cut_to),
                log.epoch_file.replaced_by(new_epochs),
                log.lock,
            ):
                log.check_usable()
                log.lower_bounds(cut_to)
                renamed = replace_segments(log, offset, producer_snapshot)
                log.bounds = LogBounds.empty(offset, log_start=log_start_offset)
                if producer_snapshot is not None:
                    log.reload_producers()
                    log.producers.add_recent_batches(recent_batches)
                log.start_record = log.start_record.not_durable_above(log_start_offset)
                log.epochs = new_epochs
    finally:
        remove_files(renamed)  # before the checkpoint, which may need their space
    log.checkpoint()


def replace_segments(
    log: PartitionLog, offset: int, producer_snapshot: bytes | None = None
) -> list[Path]:
    """Replace all segments by an empty one at ``offset``. Blocks.

    The caller holds the lock and removes the renamed files that are returned.
    """
    with _unusable_on_failure(log, 0):
        renamed = log.segments.replace_all(offset, wall_clock_ms(), producer_snapshot)
    log.producers.clear()
    return renamed


@contextmanager
def _unusable_on_failure(log: PartitionLog, required_end: int) -> Iterator[None]:
    """Mark the log as failed on an error.

    Records above ``required_end`` were to be removed, so the reopening does not miss them.
    """
    try:
        yield
    except LogError as error:
        log.failure = f"{error}; the log takes nothing more until it was opened again"
        log.required_end = required_end
        log.bounds = log.bounds.truncated(max(required_end, log.bounds.high_watermark))
        log.close_files()
        raise
