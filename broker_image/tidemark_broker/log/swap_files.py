"""One segment in place of several, by names only, so that a crash leaves the old ones or the new.

As in Kafka: files are written as ``.cleaned``, which mean nothing; once all of them are whole and
on the disk they become ``.swap``, the log last, and from there the swap is bound to happen: the
segments behind the first are renamed away, and the ``.swap`` files take their places, the log last
again. So a ``.swap`` log says that a swap was begun and what it needs is here; without one there is
nothing to finish. :func:`finish_swaps` may itself be cut short anywhere.
"""

import logging
from pathlib import Path

from tidemark.logfiles import names
from tidemark_broker.log.batch_walk import walk_file
from tidemark_broker.log.errors import CorruptRecords, storage_errors
from tidemark_broker.log.files import sync_directory

logger = logging.getLogger(__name__)

#: In the order in which they are renamed.
_SUFFIXES = (
    names.OFFSET_INDEX_SUFFIX,
    names.TIME_INDEX_SUFFIX,
    names.TRANSACTION_INDEX_SUFFIX,
    names.LOG_SUFFIX,
)


def cleaned_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """Where compaction writes a file of the new segment at ``base_offset``."""
    return directory / (names.segment_file_name(base_offset, suffix) + names.CLEANED_SUFFIX)


def swap_path(directory: Path, base_offset: int, suffix: str) -> Path:
    """The name of that file once it is whole."""
    return directory / (names.segment_file_name(base_offset, suffix) + names.SWAP_SUFFIX)


def discard_cleaned(directory: Path, base_offset: int) -> None:
    """T: they come to nothing."""
    for suffix in _SUFFIXES:
        cleaned_path(directory, base_offset, suffix).unlink(missing_ok=True)


def begin_swap(directory: Path, base_offset: int) -> None:
    """T: durably; where it raises ``OSError`` the swap may have begun."""
    for suffix in _SUFFIXES:
        swap = swap_path(directory, base_offset, suffix)
        try:
            cleaned_path(directory, base_offset, suffix).replace(swap)
        except FileNotFoundError:
            if suffix != names.TRANSACTION_INDEX_SUFFIX:
                raise
            swap.unlink(missing_ok=True)  # which an attempt that failed may have left
    sync_directory(directory)


def has_begun(directory: Path, base_offset: int) -> bool:
    """Whether a crash now would leave a swap to be finished."""
    return swap_path(directory, base_offset, names.LOG_SUFFIX).exists()


def put_in_place(directory: Path, base_offset: int) -> None:
    """T: the ``.swap`` files become the segment; those that have done so already are not missed."""
    for suffix in _SUFFIXES:
        swap = swap_path(directory, base_offset, suffix)
        with storage_errors(f"{swap} cannot be renamed"):
            try:
                swap.replace(swap.with_suffix(""))
            except FileNotFoundError:
                if suffix == names.LOG_SUFFIX:
                    raise


def finish_swaps(directory: Path) -> None:
    """T: before the segments of a directory are looked at. ``OSError`` as it comes."""
    found = [each.name for each in directory.iterdir()]
    for name in found:
        if name.endswith(names.CLEANED_SUFFIX):
            (directory / name).unlink()
    swaps = [name for name in found if name.endswith(names.SWAP_SUFFIX)]
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
    swap = swap_path(directory, base_offset, names.LOG_SUFFIX)
    end = base_offset
    try:
        for batch in walk_file(swap):
            end = batch.last_offset + 1
    except CorruptRecords as error:  # it was whole when it got that name: nothing goes for it
        logger.warning("%s is not as it was left (%s) and goes", swap, error)
        swap.unlink()
        return
    logger.info("%s takes the place of what it was made from, up to offset %d", swap, end)
    for path in directory.iterdir():
        parsed = names.parse_segment_file_name(path.name)
        if parsed is not None and base_offset < parsed[0] < end:
            path.unlink()
    put_in_place(directory, base_offset)
    sync_directory(directory)
