"""Page cache queries: whether a read would wait for the disk. The loop checks before it reads.

A read with ``RWF_NOWAIT`` (Linux 4.14) fails if a page is not in memory. A few bytes of a range
represent the whole: pages that were written or read together are usually evicted together. A file
system without support counts as uncached.
"""

import errno
import os
from pathlib import Path

from tidemark.logfiles import names
from tidemark_broker.log.errors import StorageError, storage_errors

#: Distance of the probed bytes: the kernel's default read-ahead.
_STEP_BYTES = 128 * 1024
_UNABLE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
#: Destination of the probed bytes, which are ignored.
_NOWHERE = [bytearray(1)]


class NotCached(Exception):
    """The requested bytes are likely not in memory: repeat the read in a thread."""


def check_cached(descriptor: int, start: int, end: int) -> None:
    """Raise :class:`NotCached` if reading ``[start, end)`` would likely wait for the disk."""
    try:
        # From the end: the newest pages are the likeliest to be cached, older ones to be missing.
        for position in range(end - 1, start - 1, -_STEP_BYTES):
            os.preadv(descriptor, _NOWHERE, position, os.RWF_NOWAIT)
    except BlockingIOError as error:
        raise NotCached from error
    except OSError as error:
        if error.errno in _UNABLE:
            raise NotCached from error
        raise StorageError(f"the log cannot be read: {error.strerror}") from error


def forget_cached_pages(directory: Path) -> None:
    """Have the kernel drop cached pages of the logs (blocking).

    After a failed fsync the kernel may cache pages as clean that are not on the disk, so a check of
    cached data would prove nothing. Dirty pages stay.
    """
    with storage_errors(f"{directory} cannot be read"):
        for path in directory.glob(f"*{names.LOG_SUFFIX}"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
