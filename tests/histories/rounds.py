"""One round: topics of its own, clients, faults, and the closing; what comes out is its history.

The cluster, and whatever disturbs it, belongs to this process; clients are in one of their own.
"""

import tempfile
import time
from pathlib import Path

from tests.histories.clients import Run
from tests.histories.clients_process import (
    BEGUN,
    DISTURBED,
    DONE,
    EVENTS_MAX,
    HEALED,
    ClientsProcess,
    Job,
    Work,
)
from tests.histories.events import HistoryEvent, HistoryRecorder, load
from tests.histories.faults import Faults
from tests.histories.plan import TIERED, TOPICS, RoundPlan
from tests.histories.targets import DisturbedCluster
from tests.histories.workload import NothingToJudge, perform

#: Beyond all ids of clients' operations.
FAULT_IDS = 10**9
#: How long the clients' process may take for what does not depend on the cluster.
AT_HAND_S = 120.0
#: For all that clients do when nothing is disturbed any more, which has limits of its own: a call
#: of the library that never returns may be in its way all the same.
DONE_S = 1200.0
#: For leaders to repair heads: all objects that prove a repair are in the store.
TIER_S = 60.0


class RoundFailed(Exception):
    """The round could not be brought to its end, so there is nothing to judge; says why, and has
    what was written down until then."""

    def __init__(self, why: str, events: list[HistoryEvent]) -> None:
        super().__init__(why)
        self.events = events


def run_round(
    target: DisturbedCluster,
    plan: RoundPlan,
    *,
    is_disturbed: bool = True,
    work: Work = perform,
    done_s: float = DONE_S,
) -> list[HistoryEvent]:
    """Takes ``plan.seconds``, and what clients need to end, ``done_s`` at most. Raises
    :class:`RoundFailed`."""
    # Topics of the round's own, so that rounds on one cluster do not affect each other.
    names = {topic: f"h{plan.seed}-{topic}" for topic in TOPICS}
    partitions = {names[topic]: count for topic, count in TOPICS.items()}
    tiered = [names[topic] for topic in TIERED]
    target.create_topics(partitions, tiered)
    # Both processes measure from here, on the same monotonic clock.
    began_ns = time.monotonic_ns()
    disturbing = HistoryRecorder(EVENTS_MAX, began_ns=began_ns, first_id=FAULT_IDS)
    faults = Faults(Run(target.bootstrap, names, disturbing, plan.seed), plan, target)
    why = ""
    # The clients' file is read even if their process died.
    with tempfile.TemporaryDirectory(prefix="tidemark-round-") as folder:
        history = Path(folder) / "history.jsonl"
        history.touch()
        job = Job(target.bootstrap, names, plan, began_ns, history, work)
        try:
            with ClientsProcess(job) as clients:
                _conduct(clients, faults if is_disturbed else None, plan.seconds, done_s)
            # Leaders repair old heads while clients read; the round must not end in between.
            _await_tier(target, tiered)
        except NothingToJudge as error:
            why = str(error)
        finally:
            faults.stop()
        events = sorted(load(history) + disturbing.events, key=lambda event: event.time)
    if why:
        raise RoundFailed(why, events)
    return events


def _await_tier(target: DisturbedCluster, tiered: list[str]) -> None:
    until_s = time.monotonic() + TIER_S
    while why := target.tier_trouble(tiered):
        if time.monotonic() > until_s:
            raise NothingToJudge(f"the tier is not in order {TIER_S:.0f} s after the round: {why}")
        time.sleep(0.5)


def _conduct(clients: ClientsProcess, faults: Faults | None, seconds: float, done_s: float) -> None:
    """Faults fall between the clients' beginning and their word that it was long enough."""
    # Faults begin when all clients are started, or early failures would say nothing.
    clients.hear(BEGUN, AT_HAND_S)
    if faults is not None:
        faults.start()
    clients.hear(DISTURBED, seconds + AT_HAND_S)
    if faults is not None:
        faults.stop()
        if faults.failure is not None:
            raise NothingToJudge(f"a node did not come back: {faults.failure}")
    # All nodes run again: from here on every client has to make progress.
    clients.say(HEALED)
    clients.hear(DONE, done_s)
