"""Both brokers, started side by side, with the table's topics in them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from tests.conformance.oracle import compare
from tests.conformance.oracle.sides import ComparedBroker
from tests.suites.targets import SuiteTarget, Wants, apache_kafka, bootstrap, tidemark

#: A group's first member need not wait for others, and there is one broker.
WANTS = Wants(
    brokers=1,
    entries={
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
    },
)
Start = Callable[[Path, Wants], AbstractContextManager[SuiteTarget]]


@contextmanager
def both(folder: Path) -> Iterator[tuple[ComparedBroker, ComparedBroker]]:
    """Ours and Apache Kafka's. Raises MavenMissing."""
    starts: dict[str, Start] = {"ours": tidemark, "Apache Kafka": apache_kafka}
    with ExitStack() as stack, ThreadPoolExecutor(len(starts)) as threads:
        # Starting takes most of a minute for Kafka, so both start side by side.
        def start(name: str) -> ComparedBroker:
            below = folder / name.replace(" ", "-")
            below.mkdir()
            side = ComparedBroker(name, bootstrap(stack.enter_context(starts[name](below, WANTS))))
            stack.callback(side.close)
            compare.prepare(side)
            return side

        ours, theirs = threads.map(start, starts)
        yield ours, theirs
