"""Faults while clients run: one at a time, as planned, on the node that currently has the role.

Processes die, and data of the controller and of the tier goes back to an older version, as in a
store that is restored from a backup:

* ``restore``: all of etcd, under a running operator, while one broker is down.
* ``old head``: the head of one partition's manifest in the tier. Its segments are still there, so
  the leader has to detect the old head and repair it, from memory or from its disk.

Other faults of this kind are tested elsewhere:

* A table that is rolled back, or a cluster that is restored, under an export needs Spark:
  ``make simulate KIND=tables`` (:mod:`tests.simulation.tables`), and with real jobs
  ``tests/integration/pipeline/test_rollbacks.py``.
* Erased slices: ``make simulate KIND=backups``, ``tests/conformance/test_rebuild.py``.
* Old heads under power cuts, with a failing store: ``make simulate KIND=heads``.
"""

import random
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable

from confluent_kafka import ElectionType, KafkaException, TopicPartition

from tests.histories.clients import Run
from tests.histories.plan import (
    ANY,
    ELECT,
    GROUPS,
    KILL,
    LEADER,
    OLD_HEAD,
    OPERATOR,
    PAUSE,
    RESTART,
    RESTORE,
    ROLL,
    TIERED,
    TRANSACTIONS,
    PlannedFault,
    RoundPlan,
)
from tests.histories.targets import DisturbedCluster, leaders
from tidemark_broker.coordinators.coordinator_lookup import partition_of

#: Where coordinators keep what they know.
COORDINATORS = {GROUPS: "__consumer_offsets", TRANSACTIONS: "__transaction_state"}
#: A head is put back within this time, or left as it is: all replicas have to know the present one.
OLD_HEAD_S = 8.0


class Faults:
    """A thread that disturbs ``target`` until the plan's faults are over, or until :meth:`stop`.
    ``failure``: what a node could not be brought back for."""

    def __init__(self, run: Run, plan: RoundPlan, target: DisturbedCluster) -> None:
        self.failure: Exception | None = None
        self._run = run
        self._plan = plan
        self._target = target
        self._chance = random.Random(f"{plan.seed} faults")
        #: Former versions of heads, by topic and partition.
        self._heads: dict[tuple[str, int], list[bytes]] = defaultdict(list)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="faults", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Wait until everything runs again. May be said twice, and before they began."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            # The heads are copied before each fault, so that a later fault has older versions to
            # put back.
            for fault in self._plan.faults:
                if self._stopping.wait(fault.after_s):
                    break
                self._keep_heads()
                self._happen(fault)
        except Exception as error:  # noqa: BLE001 - the round raises it
            self.failure = error
        finally:
            self._heal()

    def _heal(self) -> None:
        # Continue paused processes first: a stopped process cannot be recognized as running.
        for node in self._target.nodes:
            self._target.signal(node, signal.SIGCONT)
            try:
                self._target.start(node)
            except Exception as error:  # noqa: BLE001 - the others have to be started all the same
                self.failure = self.failure or error

    def _happen(self, fault: PlannedFault) -> None:
        does: dict[str, Callable[[str, float], None]] = {
            KILL: self._kill,
            RESTART: self._restart,
            PAUSE: self._pause,
            RESTORE: self._restore,
        }
        # Faults that choose their own nodes, then those of one node in the fault's role.
        if fault.kind == ROLL:
            self._tell(fault, "all brokers")
            for node in (node for node in self._target.nodes if node != OPERATOR):
                self._restart(node, fault.lasts_s)
        elif fault.kind == ELECT:
            self._tell(fault, "all partitions")
            self._elect()
        elif fault.kind == OLD_HEAD:
            self._old_head(fault)
        else:
            node = self._node(fault.role)
            self._tell(fault, node)
            does[fault.kind](node, fault.lasts_s)

    def _tell(self, fault: PlannedFault, node: str) -> None:
        self._run.recorder.point("faults", "fault", kind=fault.name, target=node)

    def _kill(self, node: str, lasts_s: float) -> None:
        self._target.kill(node)
        self._stopping.wait(lasts_s)
        self._target.start(node)

    def _restart(self, node: str, lasts_s: float) -> None:
        self._target.stop(node)
        self._stopping.wait(lasts_s)
        self._target.start(node)

    def _pause(self, node: str, lasts_s: float) -> None:
        self._target.signal(node, signal.SIGSTOP)
        self._stopping.wait(lasts_s)
        self._target.signal(node, signal.SIGCONT)

    def _restore(self, node: str, lasts_s: float) -> None:
        """Back up etcd, let leaders move, and restore it while that broker is down."""
        # After the backup leaders move, so that the restored data names old leaders.
        self._target.back_up()
        others = [item for item in self._target.nodes if item not in (node, OPERATOR)]
        self._restart(self._chance.choice(others), 0.1)
        self._target.kill(node)
        # Twelve seconds is longer than a broker's session, so its replicas have left the ISR by
        # then; zero keeps them in it.
        self._stopping.wait(self._chance.choice((0.0, 12.0)))
        self._target.put_back()
        self._stopping.wait(lasts_s)
        self._target.start(node)

    def _elect(self) -> None:
        """Leaders back to where they belong, by the controller. Where they are there already, or
        one of those is away, it says so."""
        places = self._run.places(tuple(self._run.topics))
        wanted = [TopicPartition(place.topic, place.partition) for place in places]
        try:
            self._target.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(10)
        except (KafkaException, TimeoutError) as error:
            self._run.recorder.point("faults", "fault", kind="refused election", target=str(error))

    def _keep_heads(self) -> None:
        for name in self._tiered():
            for number, body in self._target.heads(name).items():
                self._heads[name, number].append(body)

    def _tiered(self) -> list[str]:
        return [self._run.topics[topic] for topic in TIERED if topic in self._run.topics]

    def _old_head(self, fault: PlannedFault) -> None:
        """Replace one head while its leader, the only writer, is held up for a moment."""
        # The first fault of a round may come before any segment is copied.
        if not self._heads:
            self._run.recorder.point("faults", "fault", kind="no head yet", target="")
            return
        # Any version since the round began: its entries may be those of long deleted segments.
        topic, number = self._chance.choice(sorted(self._heads))
        body = self._chance.choice(self._heads[topic, number])
        until_s = time.monotonic() + OLD_HEAD_S
        while time.monotonic() < until_s and not self._stopping.wait(0.1):
            leader = leaders(self._target.admin, [topic]).get((topic, number))
            if leader is None:
                continue
            # Without the pause the leader could commit between the comparison and the replacement.
            self._target.signal(leader, signal.SIGSTOP)
            is_back = self._target.put_head_back(topic, number, body)
            if is_back:
                self._tell(fault, f"{topic}-{number}, led by {leader}")
                # A killed leader's memory is lost: the next one has only its disk.
                if fault.role == LEADER:
                    self._kill(leader, fault.lasts_s)
            self._target.signal(leader, signal.SIGCONT)
            if is_back:
                return
        self._run.recorder.point("faults", "fault", kind="head kept", target=f"{topic}-{number}")

    def _node(self, role: str) -> str:
        if role == OPERATOR:
            return OPERATOR
        # A role may have no node at the moment, as between a leader's death and the election.
        brokers = [node for node in self._target.nodes if node != OPERATOR]
        found: list[str] = []
        if role == LEADER:
            topics = list(self._run.topics.values())
            found = sorted(set(leaders(self._target.admin, topics).values()))
        elif role != ANY:
            found = self._coordinators(role)
        return self._chance.choice(found or brokers)

    def _coordinators(self, role: str) -> list[str]:
        """Return the coordinators of the groups, or of the transactional ids, of this run's
        clients.
        """
        topic = COORDINATORS[role]
        led = leaders(self._target.admin, [topic])
        # The coordinator of a key is the leader of the partition that its hash selects.
        keys = {
            f"{client.group}-{self._plan.seed}"
            if role == GROUPS
            else f"{self._plan.seed}-{client.name}"
            for client in self._plan.clients
            if role == TRANSACTIONS or client.group
        }
        count = 1 + max((number for _, number in led), default=0)
        numbers = {partition_of(key, count) for key in keys}
        return sorted({node for (_, number), node in led.items() if number in numbers})
