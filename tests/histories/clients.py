"""Shared parts of all clients of a run: their identity, their choices, and their record.

Each client is a thread that creates instances of itself (*processes* of the history) until it has
to stop. An instance that its library or chance ends is abandoned and the next one starts.
"""

import random
import threading
import time
from dataclasses import dataclass, field
from typing import Any

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from tests.histories.events import HistoryRecorder
from tests.histories.librdkafka_logs import Ring, ring
from tests.histories.plan import HOPS_MAX, LAST, NEXT, TOPICS, PlannedClient

#: How long a call of the library may take before it is repeated or given up.
CALL_S = 10.0
REPEATED_S = 40.0
#: A call that has not returned by then does not keep to its own time-out.
HUNG_S = 3 * CALL_S
#: Timeout of a transaction, after which its coordinator aborts it.
TRANSACTION_MS = 15_000


class Restart(Exception):
    """This instance has to be replaced."""


@dataclass(frozen=True, slots=True)
class Run:
    """One round: where the cluster is, its topics by their names in the plan, the history, the
    word to stop, and what the libraries of idempotent producers have said."""

    bootstrap: str
    topics: dict[str, str]
    recorder: HistoryRecorder
    seed: int
    stopping: threading.Event = field(default_factory=threading.Event)
    said: Ring = field(default_factory=ring)

    @property
    def goes_on(self) -> bool:
        """Whether clients may start further operations."""
        return not self.stopping.is_set() and not self.recorder.is_full

    def places(self, topics: tuple[str, ...]) -> list[TopicPartition]:
        """All partitions of some topics."""
        return [
            TopicPartition(self.topics[topic], number)
            for topic in topics
            for number in range(TOPICS[topic])
        ]

    def settings(self, **more: Any) -> dict[str, Any]:
        """Return a library's configuration: its defaults, except that it notices sooner that a
        killed broker is back (in production no broker is killed every few seconds).
        """
        return {
            "bootstrap.servers": self.bootstrap,
            "log_level": 1,
            "reconnect.backoff.max.ms": 500,
            "topic.metadata.refresh.interval.ms": 1000,
            "topic.metadata.propagation.max.ms": 0,
            "socket.timeout.ms": 10_000,
            "error_cb": _unheard,
            **more,
        }


def _unheard(error: KafkaError) -> None:
    """Ignore an error that the caller receives as well.

    Without a callback confluent-kafka raises a fatal error in the midst of other callbacks, which
    then run with an exception set: a lock taken in one of them is never released.
    """


class Instances:
    """The thread of one client. Subclasses define what one instance does."""

    def __init__(self, run: Run, client: PlannedClient) -> None:
        self.run = run
        self.client = client
        self.chance = random.Random(f"{run.seed} {client.name}")
        self.process = ""
        self.failure: Exception | None = None
        self._instances = 0
        self._values = 0
        self.thread = threading.Thread(target=self._work, name=client.name, daemon=True)

    def instance(self) -> None:
        """Run one instance until it has to be replaced (:class:`Restart`) or the run is over."""
        raise NotImplementedError

    def new_value(self, hops: int = 0) -> str:
        """Unique in the run; ends with how often it was made of another."""
        self._values += 1
        return f"{self.process}:{self._values}#{hops}"

    def pause(self, seconds: float) -> None:
        """Or until the run is over."""
        self.run.stopping.wait(seconds)

    def _work(self) -> None:
        try:
            while self.run.goes_on:
                self._instances += 1
                self.process = f"{self.client.name}.{self._instances}"
                try:
                    self.instance()
                # The library gave up, which clients have to survive. A pause keeps a broken cluster
                # from being flooded with new instances.
                except (Restart, KafkaException):
                    self.pause(0.2)
                except SystemError as error:
                    if not _is_of_the_library(error):
                        raise
                    self.pause(0.2)
        except Exception as error:  # noqa: BLE001 - a mistake of the workload's own fails the run
            self.failure = error


def _is_of_the_library(error: SystemError) -> bool:
    """confluent-kafka sometimes calls back with an error set that it has not raised yet: whatever
    is called then fails with ``SystemError``, and what was set is its cause."""
    return isinstance(error.__cause__, KafkaException)


#: Threads within a call of the library, and since when.
_calling: dict[threading.Thread, float] = {}


def is_hung(thread: threading.Thread) -> bool:
    """Return whether the thread waits for a call that should have returned long ago.

    librdkafka's ``send_offsets_to_transaction`` may wait forever for a coordinator that is no
    longer there (its issues 5456 and 5511), whatever the timeout, so no round fails for that.
    """
    since_s = _calling.get(thread)
    return since_s is not None and time.monotonic() - since_s > HUNG_S


def place_of(partition: TopicPartition) -> str:
    """As histories name it."""
    return f"{partition.topic}-{partition.partition}"


def partition_of(place: str, offset: int) -> TopicPartition:
    """The other way round."""
    topic, _, number = place.rpartition("-")
    return TopicPartition(topic, int(number), offset)


def next_topic(source: str, value: str) -> tuple[str, int]:
    """Return the topic of a record's result, and the number of earlier results that led to the
    record.
    """
    hops = int(value.rpartition("#")[2]) + 1
    return (NEXT[source] if hops <= HOPS_MAX else LAST), hops


def repeated(call: Any, *arguments: Any, before: list[str] | None = None) -> None:
    """A call that its library says may be repeated, until it is done; ``before``: what was said
    then. Raises its last error: ``KafkaException``."""
    until_s = time.monotonic() + REPEATED_S
    thread = threading.current_thread()
    while True:
        _calling[thread] = time.monotonic()
        # The start of the call is recorded, so that another thread can tell whether it hangs.
        try:
            call(*arguments, CALL_S)
        except KafkaException as error:
            # librdkafka's own rule decides what may be repeated.
            if not error_of(error).retriable() or time.monotonic() > until_s:
                raise
            if before is not None:
                before.append(str(error_of(error)))
            time.sleep(0.05)
        else:
            return
        finally:
            del _calling[thread]


def error_of(exception: KafkaException) -> KafkaError:
    """Return the library's error in the exception."""
    error: KafkaError = exception.args[0]
    return error
