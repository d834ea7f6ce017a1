"""The command ``python -m tidemark_operator``: flags, logging, one process, an exit status."""

import asyncio
import logging
import sys
from collections.abc import Sequence

from tidemark_operator.kube.access import AccessError
from tidemark_operator.process import OperatorProcess, ThreadEnded
from tidemark_operator.settings import BadSettings, OperatorSettings, parse_arguments

EXIT_FAILED = 1
EXIT_USAGE = 2


def configure_logging(level: str) -> None:
    """Log to standard error; standard output has only the ready line."""
    logging.basicConfig(
        stream=sys.stderr,
        level=level.upper(),
        format="%(asctime)s %(levelname)-7s %(threadName)s %(name)s: %(message)s",
    )
    # These libraries log every request at INFO.
    for noisy in ("aiohttp", "asyncio", "kopf", "urllib3"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


def announce(line: str) -> None:
    """Print the ready line at once, also into a pipe."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def _run(settings: OperatorSettings) -> None:
    await OperatorProcess(settings, announce).run()


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the operator until SIGTERM; return the exit code.

    0: stopped regularly. 1: a thread has ended. 2: the settings cannot work.
    """
    try:
        settings = parse_arguments(sys.argv[1:] if arguments is None else arguments)
        configure_logging(settings.log_level)
        asyncio.run(_run(settings))
    except (BadSettings, AccessError) as error:
        sys.stderr.write(f"tidemark-operator: {error}\n")
        return EXIT_USAGE
    except ThreadEnded as error:
        sys.stderr.write(f"tidemark-operator: {error}\n")
        return EXIT_FAILED
    except OSError as error:
        sys.stderr.write(f"tidemark-operator: cannot listen: {error}\n")
        return EXIT_USAGE
    return 0
