"""Keep freed buffers in the process instead of returning them to the kernel."""

import ctypes
import functools

#: Free memory that the C library keeps at the end of the heap: as much as responses of a broker may
#: use by default. Above it, all free memory would be returned after each burst of large buffers.
_KEPT_BYTES = 128 * 1024 * 1024
_LARGEST_FROM_HEAP_BYTES = 32 * 1024 * 1024  # glibc's upper limit
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD, _M_ARENA_MAX = -1, -3, -8


@functools.cache
def keep_freed_memory() -> None:
    """Make this process keep freed buffers, if the C library is glibc.

    Requests, responses and record batches are buffers of megabytes that live for milliseconds. By
    default glibc requests each from the kernel and returns it, and the kernel fills every page with
    zeros: a quarter to a third of the CPU time of producing, as measured.

    All threads share one heap. By default each thread of the tier has its own, with its own freed
    buffers: a broker with ten cold readers had a third more memory, as measured. Small objects are
    Python's own and need no lock of the heap. Call it before any thread starts: glibc reads that
    limit once.
    """
    try:
        # Other C libraries have no mallopt.
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt.argtypes = (ctypes.c_int, ctypes.c_int)
    mallopt(_M_ARENA_MAX, 1)
    mallopt(_M_MMAP_THRESHOLD, _LARGEST_FROM_HEAP_BYTES)
    mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
