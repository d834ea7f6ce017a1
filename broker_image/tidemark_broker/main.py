"""``python -m tidemark_broker --config F``: one broker in the foreground.

Standard output carries one line of JSON, when the broker is registered and unfenced; the log goes
to standard error. SIGTERM and SIGINT end it cleanly.
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
from tidemark_broker.broker import Broker, Ready
from tidemark_broker.config import BrokerConfig, load
from tidemark_broker.config_entries import ConfigError
from tidemark_broker.log import StorageError
from tidemark_broker.remote_log.remote_log_manager import RemoteLogManager
from tidemark_broker.replication.hosting.log_directory import LogDirectory

logger = logging.getLogger(__name__)

EXIT_CONFIG = 2
EXIT_FAILED = 1


def announce(ready: Ready) -> None:
    """The ready line."""
    line = {
        "ready": True,
        "nodeId": ready.node_id,
        "listener": str(next(iter(ready.listeners.values()))),
        "listeners": {name: str(address) for name, address in ready.listeners.items()},
        "clients": [
            {
                "name": each.name,
                "address": str(ready.listeners[each.name]),
                "bound": each.address.host,
                "protocol": each.protocol.name,
                "proof": each.proof,
            }
            for each in ready.clients
        ],
        "metrics": str(ready.metrics),
    }
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()
    # What a broker is made of stays until its end: no collection has to look at it again.
    gc.collect()
    gc.freeze()


async def serve(config: BrokerConfig) -> None:
    """Run a broker until a signal ends it."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    limit = file_descriptors.raise_limit()
    log_directory = await asyncio.to_thread(LogDirectory.open, config)
    file_descriptors.report(limit, log_directory.log_count)
    threads_ended = await Broker(config, log_directory, RemoteLogManager.of).run(stop, announce)
    logger.info("broker %d has shut down cleanly", config.node_id)
    if not threads_ended:
        logging.shutdown()
        os._exit(0)  # the interpreter would wait for threads that may never end


def main(arguments: list[str] | None = None) -> int:
    """Exit status: 0 after a clean shutdown, 2 for a bad configuration, 1 otherwise."""
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
    unread = unread_in_broker_file(config.entries)
    if unread:
        logger.warning("not served, nothing reads them: %s", ", ".join(unread))
    status = 0
    try:
        uvloop.run(serve(config))
    except* ConfigError as errors:
        status = _failed(errors, EXIT_CONFIG)
    except* (StorageError, OSError) as errors:
        status = _failed(errors, EXIT_FAILED)
    return status


def _failed(errors: BaseExceptionGroup[BaseException], status: int) -> int:
    """One line for each error, however deep; gives ``status``."""
    for error in errors.exceptions:
        if isinstance(error, BaseExceptionGroup):
            _failed(error, status)
        else:
            logger.critical("%s", error)
    return status
