"""Wall time for the core. Monotonic time is ``time.monotonic``, in seconds."""

import datetime as dt
import time


def utc_now() -> dt.datetime:
    """Return the time for certificates, with the zone UTC."""
    return dt.datetime.now(dt.UTC)


def micro_time(now: dt.datetime) -> str:
    """Return Kubernetes' ``MicroTime`` of a time."""
    return now.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")


def wall_ms() -> int:
    """Return milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
