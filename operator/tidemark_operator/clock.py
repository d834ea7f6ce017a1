"""Wall time as the core reckons with it. Monotonic time is ``time.monotonic``, in seconds."""

import datetime as dt
import time


def utc_now() -> dt.datetime:
    """Aware, UTC: what stands in certificates."""
    return dt.datetime.now(dt.UTC)


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
