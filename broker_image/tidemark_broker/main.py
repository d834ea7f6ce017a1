"""``python -m tidemark_broker --config F``: run one broker in the foreground.

Standard output receives one line of JSON when the broker is registered and unfenced. The log is
written to standard error. SIGTERM and SIGINT shut the broker down cleanly.
"""

import argparse
import asyncio
import gc
import json
import logging
import os
import resource
import signal
import sys
from pathlib import Path

import uvloop

from tidemark.configuration.table import unread_in_broker_file
from tidemark.freed_memory import keep_freed_memory
from tidemark_broker.broker import BrokerServer, Ready
from tidemark_broker.config import BrokerConfig, load
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.log import StorageError
from tidemark_broker.remote_log.remote_log_manager import RemoteLogManager
from tidemark_broker.replication.hosting.log_directory import LogDirectory

# ------------------------------------------------------------ open files

# Each log holds one file, readers of older segments hold more. The soft limit of a login or a
# container is often 1024 while the hard limit is far higher. The broker therefore raises the soft
# limit at its start and logs how many logs that allows.

#: Reserved for connections, checkpoints, the object store and the libraries.
RESERVED = 1024
#: The broker warns below this limit. Kafka recommends 100,000 or more.
LOW = 10_000
#: Used if the hard limit is "unlimited", which kernels refuse for open files.
_ENOUGH = 1_048_576

#: Thresholds of Python's garbage collector. Reference counts free nearly everything, so there is
#: little to find. A collection of all objects stops a broker with 5,000 connections for 0.2 s.
#: With the defaults one follows 70,000 new objects, here a million. The others stay short.
_COLLECTIONS = (2_000, 5, 100)


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


logger = logging.getLogger(__name__)

EXIT_CONFIG = 2
EXIT_FAILED = 1
#: Time after which a thread gives up the interpreter to one that waits (Python's default: 5 ms).
_SWITCH_S = 0.0005


def print_ready_line(ready: Ready) -> None:
    """Write the ready line to standard output: one JSON object with the broker's bound addresses.

    Called once, when the controller has unfenced the broker.
    """
    line = {
        "ready": True,
        "nodeId": ready.node_id,
        "listener": str(next(iter(ready.listeners.values()))),
        "listeners": {name: str(address) for name, address in ready.listeners.items()},
        "clients": [
            {
                "name": listener.name,
                "address": str(ready.listeners[listener.name]),
                "bound": listener.address.host,
                "protocol": listener.protocol.name,
                "proof": listener.proof,
            }
            for listener in ready.clients
        ],
        "metrics": str(ready.metrics),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    # The start is over.
    collect_rarely()


def collect_rarely() -> None:
    """Leave the objects of the start out of collections of garbage, and let full ones be rare."""
    # They live until the process ends, so freezing them shortens every collection.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTIONS)


async def serve(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT shuts it down."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # The limit is raised before the logs open, because each of them holds a file.
    limit = raise_limit()
    log_directory = await asyncio.to_thread(LogDirectory.open, config)
    report(limit, log_directory.log_count)
    # Returns after a clean shutdown. A failure of any task is raised.
    threads_ended = await BrokerServer(config, log_directory, RemoteLogManager.of).run(
        stop, print_ready_line
    )
    logger.info("broker %d has shut down cleanly", config.node_id)
    # Calls to the object store may block without limit.
    if not threads_ended:
        logging.shutdown()
        os._exit(0)  # the interpreter would wait for threads that may never end


def main(arguments: list[str] | None = None) -> int:
    """Run a broker and return the exit status.

    0 after a clean shutdown, 2 for an invalid configuration, 1 for another failure.
    """
    parser = argparse.ArgumentParser(prog="tidemark_broker", description="A Tidemark broker.")
    parser.add_argument("--config", type=Path, required=True, help="JSON or properties file")
    options = parser.parse_args(arguments)
    try:
        config = load(options.config)
        logging.basicConfig(
            level=config.log_level,
            stream=sys.stderr,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
    except (ConfigError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return EXIT_CONFIG
    # Before the first thread, which would get a heap for itself.
    keep_freed_memory()
    # After each system call the event loop waits for the interpreter if another thread computes.
    sys.setswitchinterval(_SWITCH_S)
    # Unused keys are a warning only: files written for Kafka contain many of them.
    unread = unread_in_broker_file(config.entries)
    if unread:
        logger.warning("unsupported keys are ignored: %s", ", ".join(unread))
    status = 0
    # Failures of tasks arrive as exception groups, and a start can fail with several of them.
    try:
        uvloop.run(serve(config))
    except* ConfigError as errors:
        status = _failed(errors, EXIT_CONFIG)
    except* (StorageError, OSError) as errors:
        status = _failed(errors, EXIT_FAILED)
    return status


def _failed(errors: BaseExceptionGroup[BaseException], status: int) -> int:
    """Log one line for each error of a nested group, and return ``status``."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _failed(error, status)
        else:
            logger.critical("%s", error)
    return status
