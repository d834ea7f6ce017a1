"""Scaling: which Brokers are created, drained and removed for a Cluster's replicas.

Only Brokers that the operator has created are counted and changed. A new one has the lowest free
id, and the rack with the fewest of them; it keeps both. Surplus Brokers with the highest ids are
drained, and removed once they have no replica. If the number is raised again meanwhile, they stay.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

#: First id of created brokers, as in most manifests.
FIRST_ID = 1
#: First id of created Readers, so that brokers get consecutive ids.
FIRST_READER_ID = 1001


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BrokerObject:
    """A Broker object.

    ``made``: created by the operator for this Cluster. ``drained``: it is to be drained and has no
    replica any more.
    """

    node_id: int
    name: str
    rack: str | None = None
    made: bool = False
    deleting: bool = False
    drained: bool = False
    is_reader: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PlannedBroker:
    """A desired Broker; ``leaving``: it is to be drained."""

    node_id: int
    name: str
    rack: str | None
    leaving: bool = False
    is_reader: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Brokers of a Cluster: missing ``desired`` ones are created, those of ``removed`` deleted."""

    desired: tuple[PlannedBroker, ...]
    removed: tuple[str, ...] = ()

    @property
    def is_leaving(self) -> bool:
        """Return whether any Broker is leaving."""
        return bool(self.removed) or any(placed.leaving for placed in self.desired)


def broker_name(node_id: int, *, is_reader: bool = False) -> str:
    """Return the name of a created Broker: a namespace has one Cluster."""
    return f"reader-{node_id}" if is_reader else f"broker-{node_id}"


def scale(
    replicas: int,
    racks: Sequence[str],
    members: Sequence[BrokerObject],
    *,
    is_reader: bool = False,
) -> Scale:
    """Return the Broker objects that a Cluster with ``spec.brokers.replicas`` should have.

    ``members``: all Broker objects. Only those that the operator has created ("made") count.
    ``racks``: names among which they are distributed, empty for none. Surplus Brokers, those with
    the highest node ids, are drained before they are deleted. ``is_reader``: for
    ``spec.readers.replicas``; Readers have nothing to drain.
    """
    made = sorted(
        (
            member
            for member in members
            if member.made and not member.deleting and member.is_reader == is_reader
        ),
        key=lambda member: member.node_id,
    )
    staying, leaving = made[:replicas], made[replicas:]
    desired = [_placed(member, leaving=False) for member in staying]
    # Ids and names of other Brokers are in use as well, also those that are being deleted.
    taken_ids = {member.node_id for member in members}
    taken_names = {member.name for member in members}
    in_racks = Counter(member.rack for member in staying)
    node_id = FIRST_READER_ID if is_reader else FIRST_ID
    # Add missing Brokers with the lowest free node ids, each in the rack with the fewest.
    while len(desired) < replicas:
        name = broker_name(node_id, is_reader=is_reader)
        if node_id not in taken_ids and name not in taken_names:
            rack = min(racks, key=lambda name: in_racks[name]) if racks else None
            in_racks[rack] += 1
            desired.append(
                PlannedBroker(node_id=node_id, name=name, rack=rack, is_reader=is_reader)
            )
        node_id += 1
    # A Broker that still has replicas stays until it is drained.
    desired += [_placed(member, leaving=True) for member in leaving if not member.drained]
    return Scale(
        desired=tuple(desired), removed=tuple(member.name for member in leaving if member.drained)
    )


def _placed(member: BrokerObject, *, leaving: bool) -> PlannedBroker:
    return PlannedBroker(
        node_id=member.node_id,
        name=member.name,
        rack=member.rack,
        leaving=leaving,
        is_reader=member.is_reader,
    )
