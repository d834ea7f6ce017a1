"""One round in its clients' process.

The clients start, continue while faults disturb the cluster, have to make progress once it is
healthy, and end; then everything is read. The history has their operations even if this process
dies.
"""

import itertools
import time
from collections.abc import Callable, Iterable

from confluent_kafka import KafkaException

from tests.histories.clients import Instances, Run, is_hung
from tests.histories.consumers import GroupMember, OffsetReader
from tests.histories.events import OK, HistoryEvent
from tests.histories.final_reads import close
from tests.histories.plan import (
    MEMBER,
    PRODUCER,
    READER,
    TRANSFORMER,
    WRITER,
    PlannedClient,
    RoundPlan,
)
from tests.histories.producers import RecordProducer, TransactionWriter
from tests.histories.transformers import Transformer, UnfencedTransformer

#: How long clients may take to end what they have begun, once all brokers are back.
ENDING_S = 120.0
CLOSING_S = 60.0
#: How long it may take until every client gets on, once all is well; the machine may be busy.
RECOVERY_S = 120.0

KINDS: dict[str, type[Instances]] = {
    PRODUCER: RecordProducer,
    WRITER: TransactionWriter,
    READER: OffsetReader,
    MEMBER: GroupMember,
    TRANSFORMER: Transformer,
}
#: What each kind of client is there to do.
DONE = {PRODUCER: "send", WRITER: "end", READER: "poll", MEMBER: "commit", TRANSFORMER: "end"}


class NothingToJudge(Exception):
    """The clients did not come to their end; says why."""


def perform(run: Run, plan: RoundPlan, healed: Callable[[], None]) -> None:
    """Takes ``plan.seconds``, and what clients need to end. ``healed``: returns when nothing is
    disturbed any more. Raises :class:`NothingToJudge`."""
    clients = [_made(run, client) for client in plan.clients]
    for client in clients:
        client.thread.start()
    until_s = time.monotonic() + plan.seconds
    # A full history ends the round early, since later operations would not be recorded.
    while time.monotonic() < until_s and not run.recorder.is_full:
        time.sleep(0.1)
    healed()
    # Clients run on until each has done something after the last fault.
    idle = _await_progress(run, plan, clients)
    run.stopping.set()
    _await_end(run, clients)
    # The history is complete, but a cluster that does not recover is a failure of its own.
    if idle:
        raise NothingToJudge(
            f"no progress {RECOVERY_S:.0f} s after the last fault: {', '.join(sorted(idle))}"
        )
    # Final reads come after all clients have ended.
    try:
        close(run, plan, seconds=CLOSING_S)
    except (KafkaException, TimeoutError) as error:
        raise NothingToJudge(f"not everything could be read at the end: {error}") from error


def _made(run: Run, client: PlannedClient) -> Instances:
    if client.kind == TRANSFORMER and client.wrong:
        return UnfencedTransformer(run, client)
    return KINDS[client.kind](run, client)


def idle_units(plan: RoundPlan, events: Iterable[HistoryEvent]) -> set[str]:
    """Clients, and groups as a whole, that got nothing done in those events: a group may have more
    members than there are partitions."""
    units = {client.name: client.group or client.name for client in plan.clients}
    done = {client.name: DONE[client.kind] for client in plan.clients}
    left = set(units.values())
    for event in events:
        name = event.process.rpartition(".")[0]
        # An empty poll is no progress.
        if event.type == OK and done.get(name) == event.f and event.value.get("records") != {}:
            left.discard(units[name])
    return left


def _await_progress(run: Run, plan: RoundPlan, clients: list[Instances]) -> set[str]:
    """Everybody gets on again, now that all is well; those who did not in time, but for those who
    wait for a client that hangs."""
    # Only events from here on count: earlier progress does not show that the cluster recovered.
    seen = len(run.recorder.events)
    until_s = time.monotonic() + RECOVERY_S
    while not run.recorder.is_full:
        idle = idle_units(plan, itertools.islice(run.recorder.events, seen, None))
        # A client that hangs in its library blocks the other members of its group as well.
        idle -= {
            client.client.group or client.client.name
            for client in clients
            if is_hung(client.thread)
        }
        if not idle or time.monotonic() > until_s:
            return idle
        time.sleep(0.3)
    return set()


def _is_at_work(client: Instances) -> bool:
    return client.thread.is_alive() and not is_hung(client.thread)


def _await_end(run: Run, clients: list[Instances]) -> None:
    until_s = time.monotonic() + ENDING_S
    while time.monotonic() < until_s and any(map(_is_at_work, clients)):
        time.sleep(0.1)
    stuck = [client.client.name for client in clients if _is_at_work(client)]
    for client in clients:
        if is_hung(client.thread):
            run.recorder.point(client.process, "hung")
    for client in clients:
        if client.failure is not None:
            raise NothingToJudge(f"{client.process} failed: {client.failure!r}") from client.failure
    if stuck:
        raise NothingToJudge(f"not done {ENDING_S:.0f} s after the last fault: {', '.join(stuck)}")
