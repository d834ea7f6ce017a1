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
import signal
import sys
from pathlib import Path

import uvloop

from tidemark.configuration.table import unread_in_broker_file
from tidemark_broker import file_descriptors
from tidemark_broker.broker import BrokerServer, Ready
from tidemark_broker.config import BrokerConfig, load
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.log import StorageError
from tidemark_broker.remote_log.remote_log_manager import RemoteLogManager
from tidemark_broker.replication.hosting.log_directory import LogDirectory

logger = logging.getLogger(__name__)

EXIT_CONFIG = 2
EXIT_FAILED = 1


def announce(ready: Ready) -> None:
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
    # Objects of the start live until the process ends. Freezing them shortens every collection.
    gc.collect()
    gc.freeze()


async def serve(config: BrokerConfig) -> None:
    """Run a broker until SIGTERM or SIGINT shuts it down."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    # The limit is raised before the logs open, because each of them holds a file.
    limit = file_descriptors.raise_limit()
    log_directory = await asyncio.to_thread(LogDirectory.open, config)
    file_descriptors.report(limit, log_directory.log_count)
    # Returns after a clean shutdown. A failure of any task is raised.
    threads_ended = await BrokerServer(config, log_directory, RemoteLogManager.of).run(
        stop, announce
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
