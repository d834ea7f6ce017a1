"""Keep freed request buffers in the process instead of giving them back to the kernel each time.

Requests and answers are buffers of about a megabyte that live for milliseconds. By default glibc
takes each from the kernel and gives it back, and the kernel fills every page with zeros anew:
measured, that is a quarter to a third of the CPU of producing. The limits below keep at most
``KEPT_BYTES`` of free memory at the end of the heap.
"""

import ctypes
import logging

logger = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024 * 1024
_LARGEST_FROM_HEAP_BYTES = 32 * 1024 * 1024  # glibc takes no more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Ask the C library; False where it is another one than glibc."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    kept = bool(
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    )
    logger.debug("freed buffers stay in the process: %s", kept)
    return kept
