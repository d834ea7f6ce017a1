"""Would a read of a file wait for the disk? Asked before the event loop reads.

The kernel answers it: a read with ``RWF_NOWAIT`` (Linux 4.14) fails where a page is not in memory.
A few bytes of a range stand for the whole: what was written or read together is kept and dropped
together. A file system that cannot tell is taken for a disk.
"""

import errno
import os

from tidemark_broker.log.errors import storage_errors

#: Distance of the bytes that are tried: what the kernel reads ahead at once, by default.
_STEP_BYTES = 128 * 1024


class NotCached(Exception):
    """What was asked for is likely not in memory: ask again from a thread."""


def check_cached(descriptor: int, start: int, end: int) -> None:
    """Raise :class:`NotCached` if reading ``[start, end)`` would likely wait for the disk."""
    byte = bytearray(1)
    for position in (*range(start, end - 1, _STEP_BYTES), end - 1):
        if not _is_cached(descriptor, byte, position):
            raise NotCached


def _is_cached(descriptor: int, byte: bytearray, position: int) -> bool:
    with storage_errors("the log cannot be read"):
        try:
            os.preadv(descriptor, [byte], position, os.RWF_NOWAIT)
        except BlockingIOError:
            return False
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL, errno.ENOSYS):
                return False
            raise
        return True
