"""Which clients run, what they do and what goes wrong meanwhile, all by one seed.

Nothing here knows a cluster: what it cannot serve yet is left out by the API keys that a kind of
client needs. When each thing happens in a real run is up to the machine; what is done is not.
"""

import random
from collections.abc import Set
from dataclasses import dataclass, field

from tests.histories.levels import IDEMPOTENT, PLAIN, READ_COMMITTED, READ_UNCOMMITTED

#: Topics by what they are called in a plan; the number of partitions of each.
TOPICS = {"a": 2, "b": 2, "c": 1}
#: Topics of results: `a` to `b` and back, so that transactions can form a circle, up to a number of
#: derivations; then to `c`.
NEXT = {"a": "b", "b": "a"}
LAST = "c"
HOPS_MAX = 2
#: Topics with a remote tier, where the cluster has one. Their segments are closed and copied every
#: second or two, and the local copies are deleted soon afterwards.
TIERED = ("b",)

PRODUCER, WRITER, READER, MEMBER, TRANSFORMER = (
    "producer",
    "writer",
    "reader",
    "member",
    "transformer",
)
KILL, RESTART, PAUSE, ROLL, ELECT = "kill", "restart", "pause", "roll", "elect"
#: etcd is put back to a backup while a broker is down.
RESTORE = "restore"
#: The manifest head of a tiered partition is replaced by an older version of itself. With the role
#: :data:`LEADER` the partition's leader is killed at that moment, and starts again.
OLD_HEAD = "old head"
ANY, LEADER, GROUPS, TRANSACTIONS, OPERATOR = (
    "broker",
    "leader",
    "group coordinator",
    "transaction coordinator",
    "operator",
)

#: How a group's partitions are assigned: two of librdkafka's assignors, and KIP-848's protocol, in
#: which brokers do it.
EAGER, COOPERATIVE, BROKERS_ASSIGN = "range", "cooperative-sticky", "brokers"

#: Kafka's keys: InitProducerId; the classic group protocol with FindCoordinator, OffsetCommit and
#: OffsetFetch; ConsumerGroupHeartbeat; AddPartitionsToTxn and EndTxn; AddOffsetsToTxn and
#: TxnOffsetCommit; ElectLeaders.
_IDEMPOTENCE = frozenset({22})
_GROUPS = frozenset({8, 9, 10, 11, 12, 13, 14})
_NEW_GROUPS = _GROUPS | {68}
_TRANSACTIONS = _IDEMPOTENCE | {10, 24, 26}
_TRANSFORMING = _TRANSACTIONS | _GROUPS | {25, 28}
_ELECTIONS = frozenset({43})


@dataclass(frozen=True, slots=True)
class PlannedClient:
    """One client, restarted for ever: ``name`` is what its processes and values begin with."""

    name: str
    kind: str
    level: str = ""
    group: str = ""
    topics: tuple[str, ...] = ()
    #: For members: how partitions are assigned.
    assignor: str = EAGER
    #: Seconds between two things it does, and how many records at once.
    pause_s: float = 0.05
    batch: int = 10
    #: Shares of what it does: aborted transactions; new instances; moves to another offset.
    aborts: float = 0.0
    restarts: float = 0.0
    #: What it does wrong on purpose, "" for nothing: see :data:`WRONGS`.
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class PlannedFault:
    """Something that happens ``after_s`` the one before, for ``lasts_s``."""

    kind: str
    role: str
    after_s: float
    lasts_s: float

    @property
    def name(self) -> str:
        """Name in the figures."""
        return f"{self.kind} {self.role}"


@dataclass(frozen=True, slots=True)
class RoundPlan:
    seed: int
    clients: tuple[PlannedClient, ...]
    faults: tuple[PlannedFault, ...]
    seconds: float
    left_out: tuple[str, ...] = field(default=())


#: What a client may do wrong, with the anomaly that shows it, and the API keys it takes: positive
#: controls for the checker, the clients' records and all that lies between.
WRONGS: dict[str, tuple[str, frozenset[str], Set[int]]] = {
    "claims what it never sent": (PLAIN, frozenset({"lost write", "unseen"}), frozenset()),
    "skips": (READ_UNCOMMITTED, frozenset({"poll skip"}), frozenset()),
    "goes back": (READ_UNCOMMITTED, frozenset({"nonmonotonic poll"}), frozenset()),
    "sends twice": (IDEMPOTENT, frozenset({"duplicate"}), _IDEMPOTENCE),
    "reads uncommitted": (READ_COMMITTED, frozenset({"G1a"}), _TRANSACTIONS),
    "is not fenced": (
        TRANSFORMER,
        frozenset({"double processing"}),
        _TRANSFORMING,
    ),
    "rewinds": (MEMBER, frozenset({"rewound commit"}), _GROUPS),
}


def make(
    seed: int,
    seconds: float,
    served: Set[int],
    *,
    operator: bool,
    wrongs: tuple[str, ...] = (),
    kinds: tuple[str, ...] = (),
) -> RoundPlan:
    """``served``: API keys that the brokers name. ``operator``: is there one to disturb (and a
    tier)? ``kinds``: the only faults, all if empty."""
    # Clients whose API keys the brokers serve.
    chance = random.Random(seed)
    kept, left_out = [], []
    aborting = [_aborting_writer()] if wrongs else []
    for client, needs in (*_clients(chance), *aborting, *map(_wrong, wrongs)):
        if needs <= served:
            kept.append(client)
        else:
            left_out.append(client.name)
    # Roles that exist in this cluster.
    roles = [ANY, LEADER]
    if served >= _GROUPS:
        roles.append(GROUPS)
    if served >= _TRANSACTIONS:
        roles.append(TRANSACTIONS)
    # Faults that the cluster allows, if none were chosen.
    if not kinds:
        kinds = (KILL, KILL, PAUSE, PAUSE, RESTART, ROLL)
        kinds += ((ELECT,) if served >= _ELECTIONS else ()) + (
            (RESTORE, OLD_HEAD, OLD_HEAD) if operator else ()
        )
    faults = _faults(chance, seconds, roles, kinds, operator=operator)
    return RoundPlan(seed, tuple(kept), faults, seconds, tuple(left_out))


def _aborting_writer() -> tuple[PlannedClient, Set[int]]:
    """Return a writer with frequent aborts.

    Readers of aborted records can only be found if there are aborts, and on a busy machine the
    other writers end only a few transactions in a short round.
    """
    writer = PlannedClient("aborting", WRITER, topics=("a", "b"), pause_s=0.01, batch=8, aborts=0.7)
    return writer, _TRANSACTIONS


def _wrong(name: str) -> tuple[PlannedClient, Set[int]]:
    level, _, needs = WRONGS[name]
    client = PlannedClient(
        f"wrong-{name.replace(' ', '-')}", READER, level, wrong=name, topics=("a", "b")
    )
    if level in (PLAIN, IDEMPOTENT):
        client = PlannedClient(client.name, PRODUCER, level, wrong=name, topics=("a", "b"))
    elif level == MEMBER:
        client = PlannedClient(
            client.name, MEMBER, READ_COMMITTED, group="rewound", wrong=name, topics=("a",)
        )
    elif level == TRANSFORMER:
        client = PlannedClient(
            client.name, TRANSFORMER, READ_COMMITTED, group="a-to-b", wrong=name, topics=("a",)
        )
    return client, needs


def _clients(chance: random.Random) -> list[tuple[PlannedClient, Set[int]]]:
    """Return clients of every kind, at least one each."""
    levels = (READ_COMMITTED, READ_UNCOMMITTED)
    found: list[tuple[PlannedClient, Set[int]]] = [
        (_producer(chance, PLAIN), frozenset()),
        (_producer(chance, IDEMPOTENT), _IDEMPOTENCE),
    ]
    # Two writers on the same partitions, so that their transactions interleave.
    for number in (1, 2):
        writer = PlannedClient(
            f"writer{number}",
            WRITER,
            topics=("a", "b"),
            pause_s=chance.uniform(0.02, 0.2),
            batch=chance.randint(1, 8),
            aborts=chance.uniform(0.1, 0.4),
            restarts=chance.uniform(0.01, 0.06),
        )
        found.append((writer, _TRANSACTIONS))
    # Readers choose their own offsets, so they need no group coordinator.
    for level in levels:
        reader = PlannedClient(
            f"reader-{level}",
            READER,
            level,
            topics=("a", "b", "c"),
            batch=chance.randint(20, 200),
            restarts=chance.uniform(0.01, 0.05),
        )
        found.append((reader, _TRANSACTIONS if level == READ_COMMITTED else frozenset()))
    # Three groups, one for each protocol. Their members restart, which causes rebalances.
    for group, assignor, needs in (
        ("eager", EAGER, _GROUPS),
        ("cooperative", COOPERATIVE, _GROUPS),
        ("new", BROKERS_ASSIGN, _NEW_GROUPS),
    ):
        level = chance.choice(levels)
        for number in range(chance.randint(2, 3)):
            member = PlannedClient(
                f"{group}{number}",
                MEMBER,
                level,
                group=group,
                topics=("a", "b"),
                assignor=assignor,
                batch=chance.randint(5, 50),
                restarts=chance.uniform(0.005, 0.03),
            )
            found.append((member, needs))
    # Two transformers in opposite directions can form a circle of transactions.
    for source, target in NEXT.items():
        group = f"{source}-to-{target}"
        assignor = chance.choice((EAGER, COOPERATIVE))
        for number in range(chance.randint(1, 2)):
            transformer = PlannedClient(
                f"{group}{number}",
                TRANSFORMER,
                READ_COMMITTED,
                group=group,
                topics=(source,),
                assignor=assignor,
                batch=chance.randint(5, 60),
                aborts=chance.uniform(0.02, 0.15),
                restarts=chance.uniform(0.01, 0.04),
            )
            found.append((transformer, _TRANSFORMING))
    return found


def _producer(chance: random.Random, level: str) -> PlannedClient:
    return PlannedClient(
        level,
        PRODUCER,
        level,
        topics=("a", "b"),
        pause_s=chance.uniform(0.01, 0.08),
        batch=chance.randint(1, 4),
        restarts=chance.uniform(0.001, 0.01),
    )


def _faults(
    chance: random.Random,
    seconds: float,
    roles: list[str],
    kinds: tuple[str, ...],
    *,
    operator: bool,
) -> tuple[PlannedFault, ...]:
    """One at a time, as many as the round may have time for."""
    # The time that a fault takes to heal is not counted: later faults may never happen.
    faults = []
    at_s = 0.0
    while at_s < seconds:
        kind = chance.choice(kinds)
        # The role that the target of this kind may have.
        role = ANY
        if kind in (KILL, RESTART, PAUSE):
            role = chance.choice([*roles, *([OPERATOR] if operator else [])])
        elif kind == RESTORE:
            role = chance.choice(roles)
        elif kind == OLD_HEAD:
            role = chance.choice((ANY, LEADER))
        longest_s = {KILL: 3.0, PAUSE: 9.0, RESTORE: 30.0, OLD_HEAD: 3.0}.get(kind, 0.5)
        fault = PlannedFault(kind, role, chance.uniform(0.5, 4.0), chance.uniform(0.1, longest_s))
        faults.append(fault)
        at_s += fault.after_s + fault.lasts_s
    return tuple(faults)
