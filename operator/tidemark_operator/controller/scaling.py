"""How many brokers a Cluster is to have: which ones are made, drained, and removed.

Only Brokers that the operator has made are counted, and touched. A new one has the lowest id that
is free, and the rack with the fewest of them; both are its own from then on. Of too many those with
the highest ids are drained, and removed once they have no replica; whoever asks for more again
meanwhile keeps them.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

#: Ids of brokers that are made begin here, as do the names of most manifests.
FIRST_ID = 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A Broker object. ``made``: by the operator, for this Cluster; ``drained``: it is to be
    drained, and has no replica any more."""

    node_id: int
    name: str
    rack: str | None = None
    made: bool = False
    deleting: bool = False
    drained: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A broker that is to be there; ``leaving``: it is to be drained."""

    node_id: int
    name: str
    rack: str | None
    leaving: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """What is to be: ``wanted`` are made if they are not there; ``removed`` are deleted."""

    wanted: tuple[Placed, ...]
    removed: tuple[str, ...] = ()

    @property
    def is_leaving(self) -> bool:
        """Whether somebody is on the way out."""
        return bool(self.removed) or any(each.leaving for each in self.wanted)


def broker_name(node_id: int) -> str:
    """Of a Broker that is made: a namespace has one Cluster."""
    return f"broker-{node_id}"


def scale(replicas: int, racks: Sequence[str], members: Sequence[Member]) -> Scale:
    """What is to be of a Cluster with ``replicas`` brokers that are made; ``members``: all."""
    made = sorted(
        (each for each in members if each.made and not each.deleting),
        key=lambda each: each.node_id,
    )
    staying, leaving = made[:replicas], made[replicas:]
    wanted = [_placed(each, leaving=False) for each in staying]
    taken_ids = {each.node_id for each in members}
    taken_names = {each.name for each in members}
    in_racks = Counter(each.rack for each in staying)
    node_id = FIRST_ID
    while len(wanted) < replicas:
        if node_id not in taken_ids and broker_name(node_id) not in taken_names:
            rack = min(racks, key=lambda each: in_racks[each]) if racks else None
            in_racks[rack] += 1
            wanted.append(Placed(node_id=node_id, name=broker_name(node_id), rack=rack))
        node_id += 1
    wanted += [_placed(each, leaving=True) for each in leaving if not each.drained]
    return Scale(wanted=tuple(wanted), removed=tuple(each.name for each in leaving if each.drained))


def _placed(member: Member, *, leaving: bool) -> Placed:
    return Placed(node_id=member.node_id, name=member.name, rack=member.rack, leaving=leaving)
