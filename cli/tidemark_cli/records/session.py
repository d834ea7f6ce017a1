"""Run of a command against the brokers: its client, signals, and errors as one message."""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple, Protocol

import typer

from tidemark_cli.common import DEFAULT_DIR, DirOption, fail, open_cluster
from tidemark_cli.kafka_access import BootstrapOption, ClientConfigOption, open_access

if TYPE_CHECKING:
    from tidemark.kafka_client.access import KafkaAccess
    from tidemark.kafka_client.client import KafkaClient


#: Id under which brokers log and throttle these commands.
CLIENT_ID = "tidemark-cli"
OutputOption = Annotated[Literal["text", "json"], typer.Option(help="Format of the output.")]


class Target(NamedTuple):
    """Cluster of a command, and advice for the case that it cannot be reached."""

    access: "KafkaAccess"
    advice: str


@dataclass(frozen=True, slots=True)
class BrokerOptions:
    """Options that select the brokers of a command: any by their addresses, or the local ones."""

    bootstrap: BootstrapOption = ""
    client_config: ClientConfigOption = None
    directory: DirOption = DEFAULT_DIR

    def target(self) -> Target:
        """Return the cluster that the options select; exit with a hint if there is none."""
        if self.bootstrap:
            advice = "Check --bootstrap, and --client-config if the listener requires TLS or SASL"
            return Target(open_access(self.bootstrap, self.client_config), advice)
        cluster = open_cluster(self.directory, ", or name brokers with --bootstrap HOST:PORT")
        addresses = cluster.addresses().bootstrap
        if not addresses:
            folder = cluster.layout.root
            fail(
                f"no broker of the cluster in {folder} is running: start it with: tidemark up "
                f"--dir {self.directory}"
            )
        return Target(
            open_access(addresses, self.client_config), "Look at it with: tidemark status"
        )


Work = Callable[["KafkaClient", asyncio.Event], Awaitable[None]]


def run(where: Target, work: Work) -> None:
    """Run ``work`` with a client, and with an event that Ctrl-C sets.

    Exits with status 1 and one message if it fails. A closed pipe ends it silently.
    """
    from tidemark.kafka_client.errors import ClusterRefused, KafkaError
    from tidemark.kafka_client.groups import UnknownGroup
    from tidemark.kafka_client.topic_leaders import UnknownTopic

    try:
        asyncio.run(_run(where, work))
    except BrokenPipeError:
        # Python flushes standard output once more at its end: to nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except KeyboardInterrupt:
        raise typer.Exit(130) from None
    except UnknownTopic as error:
        fail(f"{error}. Show the topics with: tidemark topics list")
    except UnknownGroup as error:
        fail(f"{error}. Show the groups with: tidemark groups list")
    except ClusterRefused as error:
        fail(str(error))
    except KafkaError as error:
        fail(f"{error}. {where.advice}")


async def _run(where: Target, work: Work) -> None:
    from tidemark.kafka_client.client import KafkaClient

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end() -> None:
        stop.set()
        # A second signal ends the process at once.
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.remove_signal_handler(number)

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, end)
    async with KafkaClient(where.access, client_id=CLIENT_ID) as client:
        await work(client, stop)


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
