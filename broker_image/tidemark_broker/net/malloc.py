"""Allocator settings that keep freed request buffers in the process.

Requests and answers are buffers of about a megabyte that live for milliseconds. By default glibc
requests each from the kernel and returns it, and the kernel fills every page with zeros: a quarter
to a third of the CPU time of producing, as measured. The settings below keep at most ``KEPT_BYTES``
of free memory at the end of the heap.
"""

import ctypes
import logging

logger = logging.getLogger(__name__)

KEPT_BYTES = 64 * 1024 * 1024
_LARGEST_FROM_HEAP_BYTES = 32 * 1024 * 1024  # glibc's upper limit
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def keep_freed_memory() -> bool:
    """Apply the settings. Return False for a C library other than glibc."""
    try:
        # Other C libraries have no mallopt.
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    kept = bool(
        mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP_BYTES)
        and mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)
    )
    logger.debug("allocator keeps freed buffers: %s", kept)
    return kept
