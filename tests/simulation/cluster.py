"""A whole simulated cluster: machines, operators, the API server, the store, clients and faults.

:func:`simulate` runs one seed: a minute of trouble, then all faults end and the cluster has to
settle. What a run is like (replicas, tiering, which faults how often) is drawn from the seed within
a :class:`Profile`.
"""

import asyncio
import contextlib
import datetime as dt
import gc
import logging
import random
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from unittest import mock

from tests.simulation import brokers, operators
from tests.simulation.backups import BACKUP_KINDS, Backups
from tests.simulation.brokers import SimulatedMachine
from tests.simulation.checks import Checks, TopicFacts
from tests.simulation.clients import Clients
from tests.simulation.clockwork import Clockwork
from tests.simulation.disk import ROOT, Disks
from tests.simulation.kube import ApiServer
from tests.simulation.moves import MOVE_KINDS, Moves
from tests.simulation.network import Connection, Network
from tests.simulation.objectstore import ObjectStorage
from tests.simulation.operators import NAMESPACE, OperatorProcess
from tests.simulation.transactions import SimulatedTransactions
from tidemark.tier.metadata.layout import head_key
from tidemark_operator.kube.kinds import BROKER, CLUSTER, PARTITION_SLICE, TOPIC, Json
from tidemark_operator.resources.names import CLUSTER_LABEL, slice_name
from tidemark_operator.slices.slice_store import CLUSTER_UID_LABEL

SLICES = 2
#: How long nothing must be written to the API server once all is settled.
STEADY_S = 16.0
_READ_AGAIN_S = 5.0
TIER_PATH = f"{ROOT}tier"

#: Faults and how often each comes, relative to the others.
FAULTS: Mapping[str, float] = {
    "kill": 3,
    "power cut": 4,
    "power cut in a write": 2,
    "all lose power": 0.7,
    "shut down": 2,
    "stall": 3,
    "stall of the loop": 1,
    "lost disk": 0.15,
    "bad network": 3,
    "cut off": 2,
    "brokers cut off": 1.5,
    "overtaken answers": 1,
    "bad store": 3,
    "store away": 1,
    "bad API server": 3,
    "slow API server": 1,
    "operator killed": 1,
    "operator stalls": 1.5,
    "full disk": 0.7,
}
#: What users do; see also :data:`MOVES`.
USERS: Mapping[str, float] = {"delete records": 2, "delete again": 0.7, "tiering": 1.5}


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """``None``: drawn from the seed. ``fault_s``: mean time between faults. ``max_lag``: duration
    within which records have to be in the tier, "" for none; segments are large then.
    """

    trouble_s: float = 25.0
    steps_max: int = 400_000
    fault_s: float = 1.6
    factor: int | None = None
    min_isr: int | None = None
    tiered: bool | None = None
    max_lag: str = ""
    unclean: bool | None = None
    partitions: int = 1
    brokers: int = 3
    late_broker: bool | None = None
    readers: int = 0
    faults: Mapping[str, float] = field(default_factory=lambda: FAULTS)
    users: Mapping[str, float] = field(default_factory=lambda: USERS)
    transactions: bool = False
    user_s: float = 6.0
    produce_s: float = 0.08
    consume_s: float = 0.25
    lag_ms: int = 2000
    first_fault_s: float = 6.0
    last_produce_s: float = 8.0
    settle_s: float = 120.0
    settle: bool = True


#: Brokers drained and deleted, other replication factors: what moves replicas.
MOVES = Profile(
    brokers=4,
    partitions=2,
    factor=2,
    late_broker=False,
    users={"drain": 2, "factor": 2, "delete broker": 1, **USERS},
    user_s=3.0,
)


#: The API's data is lost, or an old backup, while machines lose their power.
BACKUPS = Profile(
    factor=3,
    trouble_s=45.0,
    fault_s=1.2,
    unclean=False,
    late_broker=False,
    faults={
        "kill": 3,
        "power cut": 2,
        "shut down": 2,
        "stall": 1,
        "bad network": 1,
        "operator killed": 1,
        "slices lost": 1,
        "old data": 2,
    },
    users={"delete records": 2},
)

#: The API's data is put back under operators that run.
RESTORES = replace(
    BACKUPS,
    faults={
        "kill": 3,
        "power cut": 2,
        "shut down": 2,
        "stall": 1,
        "bad network": 1,
        "bad API server": 1,
        "operator killed": 1,
        "old data under operators": 3,
    },
)

#: The API's data is put back while a broker is down, which stays down for a while.
DOWN = replace(
    BACKUPS,
    trouble_s=130.0,
    partitions=2,
    transactions=True,
    faults={
        "kill": 2,
        "power cut": 1,
        "shut down": 2,
        "old data, a broker down": 2,
        "old data under operators, a broker down": 1,
    },
    users={},
)

#: Of the brokers that are up, one has lost its tail and one was not in the ISR.
TORN = replace(
    DOWN,
    min_isr=2,
    trouble_s=70.0,
    partitions=1,
    transactions=False,
    faults={"old data, a broker down, a tail lost": 1},
)

#: Heads of the tier go back to older versions of themselves while brokers die.
HEADS = Profile(
    tiered=True,
    unclean=False,
    fault_s=1.2,
    trouble_s=35.0,
    faults={
        "head goes back": 5,
        "kill": 3,
        "shut down": 2,
        "power cut": 2,
        "stall": 2,
        "bad store": 2,
    },
    users={"delete records": 2, "tiering": 1},
)


#: Leaders close segments early for a maximum lag, and merge them in the tier, while leaders change,
#: the store fails and heads go back to older versions.
LAG = Profile(
    tiered=True,
    max_lag="1s",
    unclean=False,
    faults={
        "kill": 3,
        "shut down": 2,
        "power cut": 2,
        "stall": 2,
        "bad network": 1,
        "bad store": 3,
        "head goes back": 2,
    },
)


#: A Reader serves the tier while users delete records and tiering, and processes are paused.
READERS = Profile(
    tiered=True,
    unclean=False,
    late_broker=False,
    readers=1,
    fault_s=1.2,
    faults={
        "stall": 5,
        "stall of the loop": 2,
        "kill": 2,
        "bad network": 2,
        "cut off": 2,
        "bad store": 1,
        "shut down": 1,
    },
    users={"delete records": 3, "tiering": 1},
    user_s=2.5,
    consume_s=0.1,
)


@dataclass(slots=True)
class SimulationOutcome:
    """Outcome of a seed; ``seconds`` of processor time."""

    seed: int
    steps: int
    seconds: float
    violation: tuple[str, str] | None
    events: list[str]
    figures: dict[str, int]


class SimulatedCluster:
    """Everything of one run."""

    def __init__(self, seed: int, profile: Profile) -> None:
        self.seed = seed
        self.profile = profile
        self.world = Clockwork(seed)
        self.network = Network(self.world)
        self.world.network = self.network  # type: ignore[attr-defined]
        Connection.network = self.network
        self.disks = Disks(self.world)
        self.checks = Checks(self)
        self.moves = Moves(self)
        self.backups = Backups(self)
        self.transactions = SimulatedTransactions(self)
        self.kube = ApiServer(self.world, self._written)
        self.storage = ObjectStorage(self.world, self.checks.stored)
        self.machines: dict[int, SimulatedMachine] = {}
        self.operators: dict[str, OperatorProcess] = {}
        self.lives = 0
        self.clients = Clients(self)
        # Numbers of the brokers without replicas, known once the run begins.
        self.readers = range(0)
        self.faulting = True

    def _written(self, who: str, old: Json | None, new: Json) -> None:
        self.checks.written(who, old, new)
        self.clients.saw(new)

    # ------------------------------------------------------------ the beginning

    def begin(self) -> None:
        profile, chance = self.profile, self.world.chance
        self._make_cluster()
        # Two operators compete for the lease.
        names = ["op-a", "op-b"]
        for node in range(1, profile.brokers + 1):
            self.machines[node] = SimulatedMachine(self, node, names, profile.lag_ms)
            self.make_broker(node)
        self.readers = range(profile.brokers + 1, profile.brokers + 1 + profile.readers)
        for node in self.readers:
            self.machines[node] = SimulatedMachine(self, node, names, profile.lag_ms)
            self.make_broker(node, role="Reader")
        for name in names:
            self.start_operator(name)
        # Three runs in ten have a broker that joins later, so that placeholders are filled.
        late = chance.random() < 0.3 if profile.late_broker is None else profile.late_broker
        for machine in self.machines.values():
            if not (late and machine.node_id == profile.brokers):
                self.world.after(0.2 * chance.random(), machine.start)
        if late:
            last = self.machines[profile.brokers]
            self.world.after(8.0 + 6 * chance.random(), last.start)
        self._make_topic()
        # Clients, then the faults of the profile, and then what users do.
        self.clients.start(produce_s=profile.produce_s, consume_s=profile.consume_s)
        if profile.transactions:
            self.world.after(profile.first_fault_s / 2, self.transactions.begin)
        if any(kind in profile.faults for kind in BACKUP_KINDS):
            self.backups.begin()
        self.world.after(profile.first_fault_s, self._fault)
        self.world.after(profile.first_fault_s + 2.0, self._user)

    def _make_cluster(self) -> None:
        config = {
            "enable.under.replicated.topic.creation": "true",
            "remote.log.storage.system.enable": "true",
            "remote.delete.delay.ms": "1500",
        }
        body = {
            "metadata": {"name": "main", "uid": brokers.CLUSTER_UID},
            "spec": {"config": config, "remoteStorage": {"filesystem": {"path": TIER_PATH}}},
            "status": {"slices": SLICES, "clusterId": brokers.CLUSTER_ID},
        }
        self.kube.create("user", CLUSTER, NAMESPACE, body)
        labels = {CLUSTER_LABEL: "main", CLUSTER_UID_LABEL: brokers.CLUSTER_UID}
        # Slices exist from the start, as the operator would have created them.
        for index in range(SLICES):
            meta = {"name": slice_name("main", index), "labels": labels}
            empty = {"controllerEpoch": 0, "commit": 0, "partitions": [], "tombstones": []}
            self.kube.create("user", PARTITION_SLICE, NAMESPACE, {"metadata": meta, **empty})

    def make_broker(self, node: int, **fields: str) -> None:
        spec = {"clusterRef": {"name": "main"}, "nodeId": node, "workload": "External", **fields}
        body = {"metadata": {"name": f"broker-{node}"}, "spec": spec}
        self.kube.create("user", BROKER, NAMESPACE, body)

    def _make_topic(self) -> None:
        profile, chance = self.profile, self.world.chance
        # Three replicas are the usual case, but fewer are drawn as well.
        factor = profile.factor or chance.choice((1, 2, 3, 3, 3))
        min_isr = profile.min_isr or chance.choice((1, 2, 2))
        unclean = chance.random() < 0.12 if profile.unclean is None else profile.unclean
        tiered = chance.random() < 0.7 if profile.tiered is None else profile.tiered
        # Segments of a few batches roll often, so copying and deletion happen within the run.
        config = {
            "segment.bytes": str(chance.choice((400, 700, 1500))),
            "min.insync.replicas": str(min_isr),
            "retention.ms": str(chance.choice((-1, -1, 15_000))),
            "unclean.leader.election.enable": "true" if unclean else "false",
        }
        spec: dict[str, Any] = {
            "clusterRef": {"name": "main"},
            "partitions": profile.partitions,
            "replicationFactor": factor,
            "config": config,
        }
        # Tiering without expiry, or with: both have to agree on the log start.
        if tiered:
            size = chance.choice(("1", "1000", "3000"))
            if config["retention.ms"] == "-1" or chance.random() < 0.8:
                spec["tiering"] = {"enabled": True, "localRetention": {"size": size}}
        # Only the maximum lag closes segments then.
        if "tiering" in spec and profile.max_lag:
            spec["tiering"]["maxLag"] = {"time": profile.max_lag}
            config["segment.bytes"] = "100000"
        body = {"metadata": {"name": "t"}, "spec": spec}
        # The checks know what the topic allows, and excuse only that.
        facts = TopicFacts(
            "t",
            min_isr=min_isr,
            unclean=unclean,
            factor=factor,
            keeps=config["retention.ms"] == "-1",
            tiered="tiering" in spec,
        )
        self.checks.add_topic(facts, profile.partitions)
        self.clients.keys = [("t", number) for number in range(profile.partitions)]
        self.checks.note(f"topic t: {spec}")
        self.world.after(2.5 + chance.random(), self.kube.create, "user", TOPIC, NAMESPACE, body)

    def start_operator(self, name: str) -> None:
        """Start an operator unless it already runs."""
        if name in self.operators and not self.operators[name].loop.dead:
            return
        self.lives += 1
        self.operators[name] = OperatorProcess(self, name, self.lives)
        self.operators[name].start()

    # ------------------------------------------------------------ faults

    def _fault(self) -> None:
        if not self.faulting:
            return
        chance = self.world.chance
        self.world.after(self.profile.fault_s * 2 * chance.random(), self._fault)
        kinds = self.profile.faults
        # While old data is being put back, no other fault may make records unprovable.
        if self.world.now_s < self.backups.calm_until_s:
            return
        kind = chance.choices(list(kinds), list(kinds.values()))[0]
        self._FAULTS[kind](self, kind)

    def _machine(self) -> SimulatedMachine:
        return self.world.chance.choice(list(self.machines.values()))

    def _again(self, machine: SimulatedMachine) -> None:
        """Restart the process after a random time."""
        chance = self.world.chance
        # Three in ten return at once, before the controller has noticed. Others take up to ten
        # seconds.
        later_s = 0.3 if chance.random() < 0.3 else 10.0 * chance.random()
        self.world.after(later_s, machine.start)

    def _end(self, kind: str, _: str = "") -> None:
        machine = self._machine()
        if machine.alive is None:
            return
        self.checks.note(f"{kind}: broker {machine.node_id}")
        if kind == "kill":
            machine.kill()
        elif kind == "power cut":
            machine.power_cut()
        elif kind == "lost disk":
            machine.lose_disk()
        else:
            machine.shut_down()
            # A clean stop takes some seconds, and the restart comes after it.
            self.world.after(8.0, self._again, machine)
            return
        self._again(machine)

    def _cut_in_a_write(self, kind: str) -> None:
        machine = self._machine()
        if machine.alive is not None:
            self.checks.note(f"{kind}: broker {machine.node_id}")
            # At one of the next 60 changes of the disk, which may be in the middle of a write.
            machine.disk.cut_in = self.world.chance.randrange(60)
            self.world.after(5.0, self._again, machine)

    def _all_lose_power(self, kind: str) -> None:
        self.checks.note(kind)
        for machine in self.machines.values():
            if machine.alive is not None:
                machine.power_cut()
                self._again(machine)

    def _stall(self, kind: str) -> None:
        machine, chance = self._machine(), self.world.chance
        if machine.alive is not None:
            # Shorter and longer than the lag limit of 2 s and the session of 9 s.
            seconds = chance.choice((0.5, 2.0, 5.0, 9.0)) * (0.5 + chance.random())
            self.checks.note(f"{kind} of {seconds:.1f} s: broker {machine.node_id}")
            machine.alive.stall(seconds, whole=kind == "stall")

    def _bad_network(self, kind: str) -> None:
        self.checks.note(kind)
        chance, net = self.world.chance, self.network
        net.lost, net.doubled = chance.choice((0, 0.02, 0.1)), chance.choice((0, 0.1))
        net.slow, net.slowest_s = chance.choice((0.1, 0.4)), chance.choice((0.3, 1.0, 4.0))
        self.world.after(1 + 6 * chance.random(), self.network.quiet)

    def _cut_off(self, kind: str) -> None:
        names = [*(m.name for m in self.machines.values()), *self.operators]
        one = self._machine().name
        # Each other machine is cut off with a chance of six in ten, operators as well.
        others = [name for name in names if name != one and self.world.chance.random() < 0.6]
        self.checks.note(f"{kind}: {one} from {', '.join(others)}")
        self.network.cut = {(one, other) for other in others}
        self.world.after(1 + 7 * self.world.chance.random(), self.network.cut.clear)

    def _brokers_cut_off(self, kind: str) -> None:
        """Two brokers do not hear each other; the operators hear both."""
        one, other = self.world.chance.sample([m.name for m in self.machines.values()], 2)
        self.checks.note(f"{kind}: {one} from {other}")
        self.network.cut = {(one, other)}
        self.world.after(0.3 + 3 * self.world.chance.random(), self.network.cut.clear)

    def _overtaken(self, kind: str) -> None:
        self.checks.note(kind)
        # Answers arrive in another order than they were sent.
        self.network.overtaken, self.network.slowest_s = 0.5, 3.0
        self.world.after(2 + 6 * self.world.chance.random(), self.network.quiet)

    def _slow_api(self, kind: str) -> None:
        self.checks.note(kind)
        self.kube.slow = 0.5
        self.world.after(2 + 6 * self.world.chance.random(), self.kube.quiet)

    def _bad_store(self, kind: str) -> None:
        self.checks.note(kind)
        self.storage.away = kind == "store away"
        self.storage.failing = self.world.chance.choice((0.1, 0.3))
        self.world.after(1 + 8 * self.world.chance.random(), self.storage.quiet)

    def _head_back(self, kind: str) -> None:
        """Roll a head back, once all replicas have its newest version on their disks.

        If no later leader knew of a commit, no broker could detect its loss.
        """
        key = self.world.chance.choice(self.clients.keys)
        head = self.checks.heads.get(key)
        row = self.checks.rows.get(key)
        # All replicas have to be up and to have recorded the newest head.
        up = [self.machines[node].alive for node in (() if row is None else row.hosts)]
        replicas = [None if process is None else process.partition(*key) for process in up]
        known = {None if replica is None else replica.durable_tier_position for replica in replicas}
        if head is None or known != {head.position}:
            return
        which = self.storage.put_back(head_key(head.topic_id, head.partition))
        if which:
            self.checks.note(f"{kind}: {which}")

    def _bad_api(self, kind: str) -> None:
        self.checks.note(kind)
        chance = self.world.chance
        self.kube.lost, self.kube.late = chance.choice((0, 0.1, 0.3)), chance.choice((0, 0.1, 0.3))
        self.world.after(1 + 6 * chance.random(), self.kube.quiet)

    def _operator_killed(self, kind: str) -> None:
        name = self.world.chance.choice(list(self.operators))
        if not self.operators[name].loop.dead:
            self.checks.note(f"{kind}: {name}")
            self.operators[name].kill()
            self.world.after(1 + 6 * self.world.chance.random(), self.start_operator, name)

    def _operator_stalls(self, kind: str) -> None:
        # Only the one that leads: it is the one that may act on what it knew before.
        leading = [operator for operator in self.operators.values() if operator.term is not None]
        if leading:
            seconds = self.world.chance.choice((1.0, 6.0, 12.0))
            self.checks.note(f"{kind} for {seconds} s: {leading[0].name}")
            leading[0].loop.stall(seconds)

    def _full_disk(self, kind: str) -> None:
        disk = self._machine().disk
        self.checks.note(f"{kind}: {disk.name}")
        disk.full = True

        def room() -> None:
            disk.full = False

        self.world.after(1 + 5 * self.world.chance.random(), room)

    def _data_lost(self, kind: str) -> None:
        self.backups.strike(kind)

    _FAULTS: Mapping[str, Callable[..., None]] = {
        "kill": _end,
        "power cut": _end,
        "lost disk": _end,
        "shut down": _end,
        "power cut in a write": _cut_in_a_write,
        "all lose power": _all_lose_power,
        "stall": _stall,
        "stall of the loop": _stall,
        "bad network": _bad_network,
        "cut off": _cut_off,
        "brokers cut off": _brokers_cut_off,
        "overtaken answers": _overtaken,
        "slow API server": _slow_api,
        "bad store": _bad_store,
        "store away": _bad_store,
        "bad API server": _bad_api,
        "head goes back": _head_back,
        "operator killed": _operator_killed,
        "operator stalls": _operator_stalls,
        "full disk": _full_disk,
        "slices lost": _data_lost,
        "old data": _data_lost,
        "old data under operators": _data_lost,
        "old data, a broker down": _data_lost,
        "old data under operators, a broker down": _data_lost,
        "old data, a broker down, a tail lost": _data_lost,
    }

    def _user(self) -> None:
        if not self.faulting:
            return
        chance, users = self.world.chance, self.profile.users
        self.world.after(self.profile.user_s * 2 * chance.random(), self._user)
        if not users:
            return
        kind = chance.choices(list(users), list(users.values()))[0]
        topic = self.kube.find(TOPIC, "t")
        if kind in MOVE_KINDS:
            self.moves.ask(kind)
        elif kind == "delete records":
            self.clients.delete_records(chance.choice(self.clients.keys))
        elif kind == "delete again":
            self.clients.delete_again(chance.choice(self.clients.keys))
        elif topic is not None and "tiering" in topic["spec"]:
            state = ((topic.get("status") or {}).get("tiering") or {}).get("state")
            if state in ("Enabled", "Disabled"):  # while Disabling the CRD's rules refuse a change
                policy = chance.choice(("Retain", "Delete"))
                self.clients.tier("t", enabled=state != "Enabled", policy=policy)

    # ------------------------------------------------------------ the end

    def settle(self) -> None:
        """Faults off: within a bounded time the cluster is as it should be."""
        self.checks.note("faults end")
        self.faulting = False
        self.network.quiet()
        self.kube.quiet()
        self.storage.quiet()
        world = self.world
        # Everything runs again, also brokers that a fault left down.
        for machine in self.machines.values():
            machine.disk.full, machine.disk.cut_in = False, None
            machine.start()
        for name, operator in self.operators.items():
            if operator.loop.dead:
                self.start_operator(name)
        self.moves.settle()
        until_s = world.now_s + self.profile.settle_s
        steps_max = world.steps + self.profile.steps_max
        # Producers continue for a while, so that repaired partitions have to commit something.
        self._run(world.now_s + self.profile.last_produce_s, steps_max)
        self.clients.producing = False
        why = "it was not looked at"
        # Settling is checked every two seconds, and processes that ended by themselves are
        # restarted.
        while why and world.now_s < until_s and not world.over and world.steps < steps_max:
            self._run(world.now_s + 2, steps_max - world.steps)
            for machine in self.machines.values():
                machine.start()
            why = self._unsettled()
        if world.over:
            return
        # These must be true also where the rest has not settled.
        for key in self.clients.keys:
            self.checks.readable(key)
        if why:
            self.checks.not_settled(why, self.profile.settle_s)
            return
        for key in self.clients.keys:
            self.checks.equal_logs(key)
            self.clients.read_whole(key)
        self.checks.deletions.repeated()
        self.transactions.check()
        self._steady(until_s, steps_max)
        for key in tuple(self.clients.unread):  # as a consumer does whose leader moved meanwhile
            self.clients.read_whole(key)
        self._run(world.now_s + _READ_AGAIN_S, steps_max - world.steps)
        for key, why in self.clients.unread.items():
            self.checks.fail("9", f"{key} cannot be read from its start to its end: {why}")

    def _steady(self, until_s: float, steps_max: int) -> None:
        """Invariant 21: where nothing happens the operator soon writes nothing."""
        world, written = self.world, -1
        # A period without any write ends the wait.
        while written != self.kube.writes and not world.over and world.steps < steps_max:
            if world.now_s > until_s + 6 * STEADY_S:
                self.checks.fail("21", f"{self.kube.last_written} is written all the time")
                return
            written = self.kube.writes
            self._run(world.now_s + STEADY_S, steps_max - world.steps)

    def _unsettled(self) -> str:
        for key in self.clients.keys:
            why = self.checks.settled(key) or self.moves.unsettled(key)
            if why:
                return why
        if not all(row.isr for row in self.checks.rows.values()):
            return ""  # a disablement waits for the partition, which waits for a person
        topic = self.kube.find(TOPIC, "t")
        tiering = ((topic or {}).get("status") or {}).get("tiering") or {}
        if tiering.get("state") == "Disabling":
            return "tiering is still Disabling"
        checks = self.checks
        # The remaining invariants at the end: nothing left in the tier, no deletion open, no
        # orphan, no open transaction.
        return (
            checks.left_behind()
            or checks.deletions.unfinished()
            or checks.orphans()
            or self.transactions.unfinished()
        )

    def _run(self, until_s: float, steps_max: int) -> None:
        self.world.run(until_s, steps_max)
        for name, error in self.world.failures:
            if not isinstance(error, asyncio.CancelledError):
                self.checks.fail("code", f"{name}: {error!r}")


# ---------------------------------------------------------------- one seed


@contextlib.contextmanager
def _replaced(cluster: SimulatedCluster) -> Iterator[None]:
    """Replace I/O, time and chance in the programs' modules for one run."""
    world, chance = cluster.world, cluster.world.chance

    def now(zone: Any = None) -> dt.datetime:
        return dt.datetime.fromtimestamp(world.wall_ms() / 1000 + world.now_s % 0.001, zone)

    datetimes = SimpleNamespace(UTC=dt.UTC, datetime=SimpleNamespace(now=now))
    start = mock.patch
    with contextlib.ExitStack() as stack:
        # Time and chance come from the run, and connections from the simulated network.
        for target, value in (
            ("time.monotonic", lambda: world.now_s),
            ("time.time_ns", lambda: world.wall_ms() * 1_000_000),
            ("time.time", lambda: world.wall_ms() / 1000),
            ("uuid.uuid4", lambda: uuid.UUID(int=chance.getrandbits(128), version=4)),
            ("tidemark_broker.control.client.KafkaConnection", Connection),
            ("tidemark_broker.replication.following.fetcher.KafkaConnection", Connection),
            ("tidemark_broker.transactions.broker_connections.KafkaConnection", Connection),
            ("tidemark_broker.control.client.HeartbeatThread", brokers._Heartbeats),
            ("tidemark_broker.control.heartbeat._TICK_S", 0.25),
            # A head has few segments before they are sealed, and some of them are to be merged.
            ("tidemark.tier.metadata.merging.SEGMENTS_MIN", 3),
            ("tidemark.tier.metadata.merging._GROWTH", 2),
            # Its threads would make the run depend on the machine.
            ("tidemark.tier.conditional_writes._RACES", 0),
            ("tidemark_broker.remote_log.store.open_tier", lambda *_, **__: _tier_of(cluster)),
            (
                "tidemark_operator.reconcile.remote_storage.open_store",
                lambda _: _tier_of(cluster).store,
            ),
            ("tidemark_operator.listener.server.Channel", operators.SimulatedChannel),
            ("tidemark_operator.reconcile.engine_term.WORKERS", 4),
            ("tidemark_operator.controller.flapping_brokers.FIRST_S", 2),
            ("tidemark_operator.controller.flapping_brokers.MOST_S", 16),
            ("tidemark_operator.clock.dt", datetimes),
        ):
            stack.enter_context(start(target, value))
        stack.enter_context(cluster.disks.mounted())
        yield


def _tier_of(cluster: SimulatedCluster) -> Any:
    loop: Any = asyncio._get_running_loop()
    tier = cluster.storage.tier("?" if loop is None else loop.name)
    original, recorded = tier.segments.store_segment, cluster.checks.custom

    # Record the custom metadata that the storage returned, to compare it with the head's (invariant
    # 11).
    def store_segment(entry: Any, *args: Any, **more: Any) -> Any:
        copied = original(entry, *args, **more)
        recorded[entry.segment_id] = copied.custom_metadata
        return copied

    tier.segments.store_segment = store_segment  # type: ignore[method-assign]
    return tier


def simulate(
    seed: int,
    profile: Profile | None = None,
    look: Callable[[SimulatedCluster], None] | None = None,
) -> SimulationOutcome:
    """Run one seed to its end, or to its first violation. The same seed gives the same run.
    ``look`` may inspect the cluster as it stands at the end."""
    profile = profile or Profile()
    began_s = time.process_time()
    # The process is put back into its former state afterwards, as a test runs many seeds.
    state, level = random.getstate(), logging.root.manager.disable
    collecting, hook = gc.isenabled(), sys.unraisablehook
    logging.disable(logging.CRITICAL)
    # Finalizers would run at moments that differ between runs.
    gc.disable()
    sys.unraisablehook = lambda _: None
    random.seed(seed)
    cluster = SimulatedCluster(seed, profile)
    try:
        with _replaced(cluster):
            cluster.begin()
            cluster._run(profile.trouble_s, profile.steps_max)
            if not cluster.world.over and profile.settle:
                cluster.settle()
            if look is not None:
                look(cluster)
            cluster.world.over = True
            outcome = _outcome(cluster, time.process_time() - began_s)
            # A dead disk ends file operations that finalizers may still attempt.
            for machine in cluster.machines.values():
                machine.disk.dead = True
            cluster.world.forget()
            del cluster
            gc.collect()
    finally:
        random.setstate(state)
        logging.disable(level)
        if collecting:
            gc.enable()
        sys.unraisablehook = hook
    return outcome


def _outcome(cluster: SimulatedCluster, seconds: float) -> SimulationOutcome:
    clients = cluster.clients
    figures = {
        "acknowledged": clients.acked,
        "refused": clients.refused,
        "read": clients.read,
        "read from the tier": clients.read_remote,
        "read from Readers": clients.read_from_readers,
        "fsyncs": sum(machine.disk.fsyncs for machine in cluster.machines.values()),
        "API writes": cluster.kube.writes,
    }
    return SimulationOutcome(
        cluster.seed,
        cluster.world.steps,
        seconds,
        cluster.checks.violation,
        cluster.checks.events,
        figures,
    )
