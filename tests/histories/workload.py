"""One round: topics of its own, clients, faults, and the closing; what comes out is its history."""

import itertools
import time
from collections.abc import Iterable

from confluent_kafka import KafkaException

from tests.histories.clients import Instances, Run, is_hung
from tests.histories.closing import close
from tests.histories.consumers import GroupMember, OffsetReader
from tests.histories.events import OK, Event, Recorder
from tests.histories.faults import Faults
from tests.histories.plan import MEMBER, PRODUCER, READER, TOPICS, TRANSFORMER, WRITER, Client, Plan
from tests.histories.producers import RecordProducer, TransactionWriter
from tests.histories.targets import Target
from tests.histories.transformers import Transformer, UnfencedTransformer

#: A history of so many events is long enough; it fits a gigabyte of memory with all that the
#: checker makes of it.
EVENTS_MAX = 500_000
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


class RoundFailed(Exception):
    """The round could not be brought to its end, so there is nothing to judge; says why, and has
    what was written down until then."""

    def __init__(self, why: str, events: list[Event]) -> None:
        super().__init__(why)
        self.events = events


def run_round(target: Target, plan: Plan, *, is_disturbed: bool = True) -> list[Event]:
    """Takes ``plan.seconds``, and what clients need to end. Raises :class:`RoundFailed`."""
    names = {topic: f"h{plan.seed}-{topic}" for topic in TOPICS}
    target.create_topics({names[topic]: count for topic, count in TOPICS.items()})
    run = Run(target.bootstrap, names, Recorder(EVENTS_MAX), plan.seed)
    clients = [_made(run, client) for client in plan.clients]
    faults = Faults(run, plan, target)
    for client in clients:
        client.thread.start()
    if is_disturbed:
        faults.start()
    until_s = time.monotonic() + plan.seconds
    try:
        while time.monotonic() < until_s and not run.recorder.is_full:
            time.sleep(0.1)
        if is_disturbed:
            faults.stop()
        idle = _await_progress(run, plan, clients)
    finally:
        if is_disturbed:
            faults.stop()
        run.stopping.set()
    _await_end(run, clients, faults)
    if idle:
        why = f"no progress {RECOVERY_S:.0f} s after the last fault: {', '.join(sorted(idle))}"
        raise RoundFailed(why, run.recorder.events)
    try:
        close(run, plan, seconds=CLOSING_S)
    except (KafkaException, TimeoutError) as error:
        why = f"not everything could be read at the end: {error}"
        raise RoundFailed(why, run.recorder.events) from error
    return run.recorder.events


def _made(run: Run, client: Client) -> Instances:
    if client.kind == TRANSFORMER and client.wrong:
        return UnfencedTransformer(run, client)
    return KINDS[client.kind](run, client)


def idle_units(plan: Plan, events: Iterable[Event]) -> set[str]:
    """Clients, and groups as a whole, that got nothing done in those events: a group may have more
    members than there are partitions."""
    units = {client.name: client.group or client.name for client in plan.clients}
    done = {client.name: DONE[client.kind] for client in plan.clients}
    left = set(units.values())
    for event in events:
        name = event.process.rpartition(".")[0]
        if event.type == OK and done.get(name) == event.f and event.value.get("records") != {}:
            left.discard(units[name])
    return left


def _await_progress(run: Run, plan: Plan, clients: list[Instances]) -> set[str]:
    """Everybody gets on again, now that all is well; those who did not in time, but for those who
    wait for a client that hangs."""
    seen = len(run.recorder.events)
    until_s = time.monotonic() + RECOVERY_S
    while not run.recorder.is_full:
        idle = idle_units(plan, itertools.islice(run.recorder.events, seen, None))
        idle -= {each.client.group or each.client.name for each in clients if is_hung(each.thread)}
        if not idle or time.monotonic() > until_s:
            return idle
        time.sleep(0.3)
    return set()


def _is_at_work(client: Instances) -> bool:
    return client.thread.is_alive() and not is_hung(client.thread)


def _await_end(run: Run, clients: list[Instances], faults: Faults) -> None:
    until_s = time.monotonic() + ENDING_S
    while time.monotonic() < until_s and any(map(_is_at_work, clients)):
        time.sleep(0.1)
    stuck = [client.client.name for client in clients if _is_at_work(client)]
    for client in clients:
        if is_hung(client.thread):
            run.recorder.point(client.process, "hung")
    for client in clients:
        if client.failure is not None:
            why = f"{client.process} failed: {client.failure!r}"
            raise RoundFailed(why, run.recorder.events) from client.failure
    if faults.failure is not None:
        why = f"a node did not come back: {faults.failure}"
        raise RoundFailed(why, run.recorder.events) from faults.failure
    if stuck:
        why = f"not done {ENDING_S:.0f} s after the last fault: {', '.join(stuck)}"
        raise RoundFailed(why, run.recorder.events)
