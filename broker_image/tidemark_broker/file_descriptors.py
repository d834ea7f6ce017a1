"""Limit of open files: each log holds one file, readers of older segments hold more.

The soft limit of a login or a container is often 1024 while the hard limit is far higher. The
broker therefore raises the soft limit at its start and logs how many logs that allows.
"""

import logging
import resource

logger = logging.getLogger(__name__)

#: Reserved for connections, checkpoints, the object store and the libraries.
RESERVED = 1024
#: The broker warns below this limit. Kafka recommends 100,000 or more.
LOW = 10_000
#: Used if the hard limit is "unlimited", which kernels refuse for open files.
_ENOUGH = 1_048_576


def logs_allowed(limit: int) -> int:
    """Return how many logs with one open segment each fit under ``limit`` open files."""
    return max(0, limit - RESERVED)


def raise_limit() -> int:
    """Raise the soft limit of open files to the hard limit and return the resulting soft limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Linux rejects RLIM_INFINITY for open files (fs.nr_open).
    target = _ENOUGH if hard == resource.RLIM_INFINITY else hard
    if soft == resource.RLIM_INFINITY or soft >= target:
        return soft if soft != resource.RLIM_INFINITY else _ENOUGH
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    # A security policy may forbid it; the broker still starts.
    except (ValueError, OSError) as error:
        logger.warning("the limit of open files stays at %d: %s", soft, error)
        return soft
    return target


def report(limit: int, logs: int) -> None:
    """Log how many partition logs the limit of open files allows, and how many exist.

    ``limit`` is the soft limit, ``logs`` the number of existing logs. A warning if the limit is
    below :data:`LOW` or too low for the existing logs.
    """
    allowed = logs_allowed(limit)
    # Each log keeps at least one file open. Beyond the limit, logs cannot be opened.
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
