"""Lines on standard error about a run: progress, and a last line."""

import asyncio
import sys
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from tidemark.kafka_client.client import KafkaClient

#: Time between two lines of progress.
PROGRESS_S = 5.0


class Reportable(Protocol):
    """Run with one line about its progress, and one about its end."""

    @property
    def has_begun(self) -> bool: ...

    def progress(self) -> str: ...

    def summary(self) -> str: ...

    async def run(self, client: "KafkaClient", stop: asyncio.Event) -> None: ...


def say(line: str) -> None:
    """Print a line on standard error."""
    print(line, file=sys.stderr, flush=True)


async def reported(
    work: Reportable, client: "KafkaClient", stop: asyncio.Event, *, quiet: bool = False
) -> None:
    """Execute a run, with lines on standard error.

    ``quiet``: without progress, as the records appear on the terminal. A run that fails
    gets its last line too, unless it had no record yet or its output is closed.
    """
    # A task of its own, as the run may wait for a broker.
    beat = asyncio.create_task(_progress(work)) if not quiet else None
    try:
        await work.run(client, stop)
    # The program that read the records has ended, so the end is silent.
    except BrokenPipeError:
        raise
    # The figures of a run that failed tell how far it came.
    except Exception:
        if work.has_begun:
            say(work.summary())
        raise
    else:
        say(work.summary())
    finally:
        if beat is not None:
            beat.cancel()


async def _progress(work: Reportable) -> None:
    while True:
        await asyncio.sleep(PROGRESS_S)
        say(work.progress())
