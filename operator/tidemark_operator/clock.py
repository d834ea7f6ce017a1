"""Wall time as the core reckons with it. Monotonic time is ``time.monotonic``, in seconds."""

import time


def wall_ms() -> int:
    """Milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
