"""Replacement of several segments by one through renames, so that a crash leaves the old or the
new.

As in Kafka, files are written as ``.cleaned``, which are ignored. Once all are complete and durable
they become ``.swap``, the log last; from then on the swap must complete. The segments after the
first are renamed away, and the ``.swap`` files take their places, the log last again. So a
``.swap`` log shows that a swap began and that its files are present; without one there is nothing
to complete. :func:`finish_swaps` may itself be interrupted anywhere.
"""

import logging
from pathlib import Path

from tidemark.logfiles import names
from tidemark_broker.log.batch_walk import walk_file
from tidemark_broker.log.errors import CorruptRecords, storage_errors
from tidemark_broker.log.files import sync_directory

logger = logging.getLogger(__name__)

#: Suffixes in the order in which files are renamed.
_SUFFIXES = (
    names.OFFSET_INDEX_SUFFIX,
    names.TIME_INDEX_SUFFIX,
    names.TRANSACTION_INDEX_SUFFIX,
    names.LOG_SUFFIX,
)


def cleaned_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """Return the path under which compaction writes a file of the new segment."""
    return directory / (names.segment_file_name(base_offset, suffix) + names.CLEANED_SUFFIX)


def swap_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """Return the path of a complete file that waits for its swap."""
    return directory / (names.segment_file_name(base_offset, suffix) + names.SWAP_SUFFIX)


def discard_cleaned(directory: Path, base_offset: int) -> None:
    """Remove the ``.cleaned`` files. Blocks."""
    for suffix in _SUFFIXES:
        cleaned_path(directory, base_offset, suffix).unlink(missing_ok=True)


def begin_swap(directory: Path, base_offset: int) -> None:
    """Rename ``.cleaned`` files to ``.swap`` durably. Blocks.

    After an ``OSError`` the swap may have begun.
    """
    for suffix in _SUFFIXES:
        swap = swap_path(directory, base_offset, suffix)
        try:
            cleaned_path(directory, base_offset, suffix).replace(swap)
        except FileNotFoundError:
            if suffix != names.TRANSACTION_INDEX_SUFFIX:
                raise
            swap.unlink(missing_ok=True)  # the remains of a failed attempt
    sync_directory(directory)


def has_begun(directory: Path, base_offset: int) -> bool:
    """Return whether a crash now would leave a swap to complete."""
    return swap_path(directory, base_offset, names.LOG_SUFFIX).exists()


def put_in_place(directory: Path, base_offset: int) -> None:
    """Rename the ``.swap`` files to the segment's names; those that were renamed before are
    skipped. Blocks.
    """
    for suffix in _SUFFIXES:
        swap = swap_path(directory, base_offset, suffix)
        with storage_errors(f"{swap} cannot be renamed"):
            try:
                swap.replace(swap.with_suffix(""))
            except FileNotFoundError:
                if suffix == names.LOG_SUFFIX:
                    raise


def finish_swaps(directory: Path) -> None:
    """Complete compaction swaps that a crash interrupted, before segments are read. Blocks.

    Files of swaps that had not begun are removed. Raises ``OSError``.
    """
    found = [path.name for path in directory.iterdir()]
    for name in found:
        if name.endswith(names.CLEANED_SUFFIX):
            (directory / name).unlink()
    swaps = [name for name in found if name.endswith(names.SWAP_SUFFIX)]
    # Without its log file a swap did not begin: its other files are worthless.
    begun = {_base_offset_of(name) for name in swaps if name.endswith(_SWAPPED_LOG)}
    for name in swaps:
        if _base_offset_of(name) not in begun:
            (directory / name).unlink()
    for base_offset in sorted(begun):
        _finish(directory, base_offset)


_SWAPPED_LOG = names.LOG_SUFFIX + names.SWAP_SUFFIX


def _base_offset_of(name: str) -> int:
    parsed = names.parse_segment_file_name(name.removesuffix(names.SWAP_SUFFIX))
    return -1 if parsed is None else parsed[0]


def _finish(directory: Path, base_offset: int) -> None:
    """Complete one swap: remove the segments that the ``.swap`` files replace, rename these.

    ``base_offset``: that of the new segment.
    """
    swap = swap_path(directory, base_offset, names.LOG_SUFFIX)
    end = base_offset
    # The new segment's offsets show which segments it replaces.
    try:
        for batch in walk_file(swap):
            end = batch.last_offset + 1
    except CorruptRecords as error:
        # The file was complete when it was named .swap, so the disk has damaged it since. The
        # segments that it was to replace stay.
        logger.warning("%s is damaged (%s) and is removed", swap, error)
        swap.unlink()
        return
    logger.info("%s replaces the segments it was compacted from, up to offset %d", swap, end)
    for path in directory.iterdir():
        parsed = names.parse_segment_file_name(path.name)
        if parsed is not None and base_offset < parsed[0] < end:
            path.unlink()
    put_in_place(directory, base_offset)
    sync_directory(directory)
