"""Draining: replicas move away from a broker whose ``Broker`` has ``drain`` or is being deleted.

Each replica moves by a reassignment of its own (:mod:`reassignment`). Its successor takes its place
among the replicas and catches up. Only then does the drained broker leave row and ISR; it serves
and leads until then. Moves start as :mod:`catch_up_limits` has room. There is no plan to lose:
every replica on such a broker that is not moving is left to do, so a new controller continues from
the rows. A successor that died, or is to be drained itself, is replaced. If ``drain`` is withdrawn,
moves in progress still finish.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from tidemark_operator.controller import accepted_losses, reassignment, rebuilding, registration
from tidemark_operator.controller.catch_up_limits import CatchUpRoom, takers
from tidemark_operator.controller.placement import Spreads, newcomer
from tidemark_operator.controller.state.commit import Draft
from tidemark_operator.controller.state.model import NO_LEADER, BrokerInfo, PartitionRow, RowKey

#: Moves that one decision starts; the others wait for the next one.
BEGUN_MAX = 100


class Obstacle(enum.Enum):
    """Reason why a replica cannot move, with what to do."""

    NO_BROKER = (
        "every live broker that accepts replicas and has a working log "
        "directory already has one. Start another broker, or lower "
        "replicationFactor"
    )
    NO_LEADER = "no leader to catch up from. See the condition Ready of the Topic"
    PAUSED = "the Topic is paused. Remove its annotation tidemark.dev/paused"
    REBUILDING = (
        "its PartitionSlice is lost and not rebuilt yet from the state of this "
        "broker and others. See the condition Ready of the Topic"
    )
    NO_TOPIC = "no Topic has this topic's id. Create the Topic again, or restore it from a backup"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DrainProgress:
    """Progress of a broker that drains.

    ``remaining`` counts its replicas, ``moving`` those that move, and ``stuck`` has those that
    cannot. The others wait for room.
    """

    remaining: int
    moving: int
    stuck: Mapping[Obstacle, tuple[RowKey, ...]]

    @property
    def waiting(self) -> int:
        return self.remaining - self.moving - sum(map(len, self.stuck.values()))

    @property
    def goes_on(self) -> bool:
        """Return whether something moves, or will without help."""
        return bool(self.moving or self.waiting)


def progress(draft: Draft, node_id: int) -> DrainProgress:
    """Return how far a leaving broker is drained: replicas left, moving, and unable to move."""
    # `able`: brokers that accept replicas.
    able, moving = takers(draft), 0
    stuck: dict[Obstacle, list[RowKey]] = {}
    rows = draft.rows_on(node_id)
    for row in rows:
        obstacle = _obstacle(draft, row, able)
        if obstacle is not None:
            stuck.setdefault(obstacle, []).append(row.key)
        # A move in progress has a successor for this broker, so the row has no unfit replica.
        elif not _unfit(draft, row):
            moving += 1
    # Lost rows do not name the broker, but its copy may be needed to rebuild them.
    reported = rebuilding.only_reported(draft.state, node_id)
    if reported:
        stuck[Obstacle.REBUILDING] = [*reported]
    return DrainProgress(
        remaining=len(rows) + len(reported),
        moving=moving,
        stuck={obstacle: tuple(keys) for obstacle, keys in stuck.items()},
    )


def may_be_removed(draft: Draft, broker: BrokerInfo) -> bool:
    """Return whether a Broker that is being deleted may be removed from the cluster now.

    Normally its replicas have all moved. Otherwise the broker must be stopped, none of its replicas
    can move, and other brokers have its records (or a person accepts their loss).
    """
    left = progress(draft, broker.node_id)
    if not left.remaining:
        return True
    # A live broker continues to serve, unless no broker reaches this controller.
    if left.goes_on or (broker.live and not draft.state.unreached):
        return False
    gives_up = accepted_losses.is_given_up(broker)
    is_needed = Obstacle.REBUILDING in left.stuck
    return gives_up or not (is_needed or registration.removal_blockers(draft, broker.node_id))


def step(draft: Draft) -> int:
    """Start moves of replicas away from leaving brokers; return the number of moves.

    Called periodically. The number of moves in progress is limited. Partitions of one slice come
    together, so that one write starts many moves.
    """
    state = draft.state
    leaving = [node_id for node_id, broker in state.brokers.items() if broker.leaving]
    keys = {key for node_id in leaving for key in state.partitions.keys_on(node_id)}
    if not keys:
        return 0
    room, spreads, begun = CatchUpRoom(draft), Spreads(draft), 0
    for key in sorted(keys, key=lambda key: (state.slice_index(key), key)):
        if room.is_full or begun >= BEGUN_MAX:
            break
        begun += _replace_unfit(draft, key, room, spreads)
    return begun


def _replace_unfit(draft: Draft, key: RowKey, room: CatchUpRoom, spreads: Spreads) -> bool:
    """Give one row's unfit replicas successors, as far as there is room.

    Return whether it changed.
    """
    before = draft.row(key)
    if before is None or _obstacle(draft, before, room.takers) is not None:
        return False
    for replica in _unfit(draft, before):
        row = draft.row(key)
        if row is not None:
            _replace(draft, row, replica, room, spreads)
    return draft.row(key) != before


def _replace(
    draft: Draft, row: PartitionRow, replica: int, room: CatchUpRoom, spreads: Spreads
) -> None:
    """Draft the replacement of one replica of a draining broker, if another broker can take it.

    ``room`` limits the replicas that catch up at the same time; ``spreads`` balance them.
    """
    goal = reassignment.target(row)
    kept = [other for other in goal if other >= 0 and other != replica]
    successor = newcomer(draft, row, kept, spreads.of(row.topic_id), room)
    # Without a new broker, one that an earlier reassignment is removing may stay instead.
    is_new = successor is not None
    if not is_new and not _has_taker(row, room.takers):
        successor = _returning(draft, row, replica)
    if successor is None:
        return
    replicas = tuple(successor if other == replica else other for other in goal)
    new = reassignment.redirected(draft, row, replicas)
    if new is not None and reassignment.keeps_minimum(draft, row, new):
        draft.put_row(new)
        spreads.moved(row, new)
        if is_new:
            room.take(successor, row.key)


def _unfit(draft: Draft, row: PartitionRow) -> list[int]:
    """Return the replicas of the move's target that have to be replaced.

    They are on leaving brokers, or were being added on a broker that has died, or whose storage
    fails, before they had caught up.
    """
    return [
        replica
        for replica in reassignment.target(row)
        if replica >= 0 and (_is_leaving(draft, replica) or _cannot_catch_up(draft, row, replica))
    ]


def _cannot_catch_up(draft: Draft, row: PartitionRow, replica: int) -> bool:
    return replica in row.adding and (
        not draft.is_live(replica) or draft.state.refuses(row, replica)
    )


def _returning(draft: Draft, row: PartitionRow, replica: int) -> int | None:
    """Return a replica being removed that can stay in place of one that cannot be added.

    It is in sync, live and not leaving, and is used only if no other broker can take the replica.
    """
    if replica not in row.adding:
        return None
    stays = (
        other
        for other in row.removing
        if other in row.isr and draft.is_live(other) and not _is_leaving(draft, other)
    )
    return next(stays, None)


def _is_leaving(draft: Draft, node_id: int) -> bool:
    broker = draft.broker(node_id)
    return broker is not None and broker.leaving


def _obstacle(draft: Draft, row: PartitionRow, able: Sequence[BrokerInfo]) -> Obstacle | None:
    """Return why a partition cannot move away at present, apart from the limit on moves.

    None: it can, or its topic is being deleted, with all replicas.
    """
    topic = draft.state.topics.by_id(row.topic_id)
    if topic is None:
        return Obstacle.NO_TOPIC
    if topic.deletion_ms is not None:
        return None
    # A leader in recovery may lack records that the new replica would need.
    if row.leader == NO_LEADER or row.recovering:
        return Obstacle.NO_LEADER
    unfit = _unfit(draft, row)
    if not unfit:
        return None
    if topic.paused:
        return Obstacle.PAUSED
    stay = (_returning(draft, row, replica) for replica in unfit)
    moves = _has_taker(row, able) or any(replica is not None for replica in stay)
    return None if moves else Obstacle.NO_BROKER


def _has_taker(row: PartitionRow, able: Sequence[BrokerInfo]) -> bool:
    return any(broker.node_id not in row.replicas for broker in able)
