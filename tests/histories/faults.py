"""What goes wrong while clients run: one thing at a time, as the plan says, on the node that is in
that role just then."""

import random
import signal
import threading
from collections.abc import Callable

from confluent_kafka import ElectionType, KafkaException, TopicPartition

from tests.histories.clients import Run
from tests.histories.plan import (
    ANY,
    ELECT,
    GROUPS,
    KILL,
    LEADER,
    OPERATOR,
    PAUSE,
    RESTART,
    RESTORE,
    ROLL,
    TRANSACTIONS,
    Fault,
    Plan,
)
from tests.histories.targets import Target, leaders
from tidemark_broker.coordinators.java_hash import partition_of

#: Where coordinators keep what they know.
COORDINATORS = {GROUPS: "__consumer_offsets", TRANSACTIONS: "__transaction_state"}


class Faults:
    """A thread that disturbs ``target`` until the plan's faults are over, or it is told to stop.
    ``failure``: what a node could not be brought back for."""

    def __init__(self, run: Run, plan: Plan, target: Target) -> None:
        self.failure: Exception | None = None
        self._run = run
        self._plan = plan
        self._target = target
        self._chance = random.Random(f"{plan.seed} faults")
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._work, name="faults", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """Wait until everything runs again. May be said twice, and before they began."""
        self._stopping.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _work(self) -> None:
        try:
            for fault in self._plan.faults:
                if self._stopping.wait(fault.after_s):
                    break
                self._happen(fault)
        except Exception as error:  # noqa: BLE001 - told by whoever waits for the run
            self.failure = error
        finally:
            self._heal()

    def _heal(self) -> None:
        for node in self._target.nodes:
            self._target.signal(node, signal.SIGCONT)
            try:
                self._target.start(node)
            except Exception as error:  # noqa: BLE001 - the others have to be started all the same
                self.failure = self.failure or error

    def _happen(self, fault: Fault) -> None:
        does: dict[str, Callable[[str, float], None]] = {
            KILL: self._kill,
            RESTART: self._restart,
            PAUSE: self._pause,
            RESTORE: self._restore,
        }
        if fault.kind == ROLL:
            self._tell(fault, "all brokers")
            for node in (node for node in self._target.nodes if node != OPERATOR):
                self._restart(node, fault.lasts_s)
        elif fault.kind == ELECT:
            self._tell(fault, "all partitions")
            self._elect()
        else:
            node = self._node(fault.role)
            self._tell(fault, node)
            does[fault.kind](node, fault.lasts_s)

    def _tell(self, fault: Fault, node: str) -> None:
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
        self._target.back_up()
        others = [each for each in self._target.nodes if each not in (node, OPERATOR)]
        self._restart(self._chance.choice(others), 0.1)
        self._target.kill(node)
        self._stopping.wait(self._chance.choice((0.0, 12.0)))
        self._target.put_back()
        self._stopping.wait(lasts_s)
        self._target.start(node)

    def _elect(self) -> None:
        """Leaders back to where they belong, by the controller. Where they are there already, or
        one of those is away, it says so."""
        places = self._run.places(tuple(self._run.topics))
        wanted = [TopicPartition(each.topic, each.partition) for each in places]
        try:
            self._target.admin.elect_leaders(ElectionType.PREFERRED, wanted).result(10)
        except (KafkaException, TimeoutError) as error:
            self._run.recorder.point("faults", "fault", kind="refused election", target=str(error))

    def _node(self, role: str) -> str:
        if role == OPERATOR:
            return OPERATOR
        brokers = [node for node in self._target.nodes if node != OPERATOR]
        found: list[str] = []
        if role == LEADER:
            topics = list(self._run.topics.values())
            found = sorted(set(leaders(self._target.admin, topics).values()))
        elif role != ANY:
            found = self._coordinators(role)
        return self._chance.choice(found or brokers)

    def _coordinators(self, role: str) -> list[str]:
        """Of the groups, or of the transactional ids, of this run's clients."""
        topic = COORDINATORS[role]
        led = leaders(self._target.admin, [topic])
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
