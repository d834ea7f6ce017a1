"""How many files the broker may hold open: every log holds one, readers of older segments more.

The soft limit of a login or a container is often 1024 while the hard one is far higher, so the
broker takes all that it may have, and says at its start how many logs that allows.
"""

import logging
import resource

logger = logging.getLogger(__name__)

#: For connections, checkpoints, the object store and the libraries.
RESERVED = 1024
#: Below this the broker warns: Kafka's own advice is 100,000 and more.
LOW = 10_000
#: Asked for where the hard limit is "unlimited" (which kernels then refuse for open files).
_ENOUGH = 1_048_576


def logs_allowed(limit: int) -> int:
    """Logs with one open segment each that fit under ``limit`` open files."""
    return max(0, limit - RESERVED)


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard one; what it is now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft if soft != resource.RLIM_INFINITY else _ENOUGH
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    except (ValueError, OSError) as error:
        logger.warning("the limit of open files stays %d: %s", soft, error)
        return soft
    return target


def report(limit: int, logs: int) -> None:
    """One line: what ``limit`` allows, beside the ``logs`` that are there; a warning if that is
    little."""
    allowed = logs_allowed(limit)
    if limit < LOW or logs > allowed:
        logger.warning(
            "only %d open files are allowed, enough for about %d logs (%d are here): "
            "raise the hard limit (LimitNOFILE of a unit, ulimit -Hn, the container runtime)",
            limit,
            allowed,
            logs,
        )
    else:
        logger.info(
            "%d open files are allowed, enough for about %d logs (%d are here)",
            limit,
            allowed,
            logs,
        )
