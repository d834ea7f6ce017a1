"""Wall time for the core. Monotonic time is ``time.monotonic``, in seconds."""

import datetime as dt
import time


def utc_now() -> dt.datetime:
    """Return the time for certificates, with the zone UTC."""
    return dt.datetime.now(dt.UTC)


def wall_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
