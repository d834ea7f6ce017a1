"""What the kernel holds of a log file: would a read wait for the disk? Asked before the loop reads.

The kernel answers it: a read with ``RWF_NOWAIT`` (Linux 4.14) fails where a page is not in memory.
A few bytes of a range stand for the whole: what was written or read together is kept and dropped
together. A file system that cannot tell is taken for a disk.
"""

import errno
import os
from pathlib import Path

from tidemark.logfiles import names
from tidemark_broker.log.errors import StorageError, storage_errors

#: Distance of the bytes that are tried: what the kernel reads ahead at once, by default.
_STEP_BYTES = 128 * 1024
_UNABLE = frozenset({errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS})
#: Where the bytes go that are read to see whether they can be; nobody looks at them.
_NOWHERE = [bytearray(1)]


class NotCached(Exception):
    """What was asked for is likely not in memory: ask again from a thread."""


def check_cached(descriptor: int, start: int, end: int) -> None:
    """Raise :class:`NotCached` if reading ``[start, end)`` would likely wait for the disk."""
    try:
        for position in range(end - 1, start - 1, -_STEP_BYTES):
            os.preadv(descriptor, _NOWHERE, position, os.RWF_NOWAIT)
    except BlockingIOError as error:
        raise NotCached from error
    except OSError as error:
        if error.errno in _UNABLE:
            raise NotCached from error
        raise StorageError(f"the log cannot be read: {error.strerror}") from error


def forget_cached_pages(directory: Path) -> None:
    """Have the kernel drop what it holds of the logs in memory (blocking).

    After a failed fsync it may hold pages that it takes for written and that are not on the disk:
    a check of what is in memory would prove nothing. Pages that are still to be written stay.
    """
    with storage_errors(f"{directory} cannot be read"):
        for path in directory.glob(f"*{names.LOG_SUFFIX}"):
            descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)
