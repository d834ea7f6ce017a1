"""Draining: what a broker holds moves to others, since its ``Broker`` says ``drain`` or is deleted.

Each replica moves by a reassignment of its own (:mod:`reassignment`): its successor takes its place
among the replicas, catches up, and only then the drained broker leaves row and ISR. It serves and
leads until then. Moves begin as :mod:`catch_up_limits` has room. There is no plan that could be
lost: what is on such a broker and not on its way is what is left to do, so a new controller goes on
from the rows, and a successor that died or is to be drained itself is replaced by another one.
Where ``drain`` is taken back, moves under way end as they were begun.
"""

import dataclasses
import enum
from collections.abc import Mapping, Sequence

from tidemark_operator.controller import accepted_losses, reassignment, rebuilding, registration
from tidemark_operator.controller.catch_up_limits import Room, takers
from tidemark_operator.controller.commit import Draft
from tidemark_operator.controller.model import NO_LEADER, BrokerInfo, PartitionRow, RowKey
from tidemark_operator.controller.placement import Spreads, newcomer

#: Moves that one decision begins: more of them wait for the next one.
BEGUN_MAX = 100


class Obstacle(enum.Enum):
    """Why a replica cannot move, and what helps."""

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
class Progress:
    """How far a broker is: the replicas that it still has, those of them that are on their way, and
    those that cannot move. The others wait for room."""

    remaining: int
    moving: int
    stuck: Mapping[Obstacle, tuple[RowKey, ...]]

    @property
    def waiting(self) -> int:
        return self.remaining - self.moving - sum(map(len, self.stuck.values()))

    @property
    def goes_on(self) -> bool:
        """Something moves, or will by itself."""
        return bool(self.moving or self.waiting)


def progress(draft: Draft, node_id: int) -> Progress:
    """Of a broker that is leaving."""
    able, under_way = takers(draft), 0
    stuck: dict[Obstacle, list[RowKey]] = {}
    rows = draft.rows_on(node_id)
    for row in rows:
        obstacle = _obstacle(draft, row, able)
        if obstacle is not None:
            stuck.setdefault(obstacle, []).append(row.key)
        elif not _unfit(draft, row):
            under_way += 1
    reported = rebuilding.only_reported(draft.state, node_id)
    if reported:
        stuck[Obstacle.REBUILDING] = [*reported]
    return Progress(
        remaining=len(rows) + len(reported),
        moving=under_way,
        stuck={obstacle: tuple(keys) for obstacle, keys in stuck.items()},
    )


def may_go(draft: Draft, broker: BrokerInfo) -> bool:
    """Whether a Broker that is being deleted need not be waited for: its replicas are elsewhere; or
    none of them can move, it was stopped, and others have what it had, or a person gives it up."""
    left = progress(draft, broker.node_id)
    if not left.remaining:
        return True
    if left.goes_on or (broker.live and not draft.state.unreached):
        return False
    gives_up = accepted_losses.gives_up(broker)
    is_needed = Obstacle.REBUILDING in left.stuck
    return gives_up or not (is_needed or registration.removal_blockers(draft, broker.node_id))


def step(draft: Draft) -> int:
    """Begin moves away from brokers that are leaving; how many. Called now and then: a row of one
    slice after another, so that one write holds many."""
    state = draft.state
    leaving = [node_id for node_id, broker in state.brokers.items() if broker.leaving]
    keys = {key for node_id in leaving for key in state.keys_on(node_id)}
    if not keys:
        return 0
    room, spreads, begun = Room(draft), Spreads(draft), 0
    for key in sorted(keys, key=lambda key: (state.slice_index(key), key)):
        if room.is_full or begun >= BEGUN_MAX:
            break
        begun += _move_on(draft, key, room, spreads)
    return begun


def _move_on(draft: Draft, key: RowKey, room: Room, spreads: Spreads) -> bool:
    """Give one row's unfit replicas successors, as far as there is room; whether it changed."""
    before = draft.row(key)
    if before is None or _obstacle(draft, before, room.takers) is not None:
        return False
    for replica in _unfit(draft, before):
        row = draft.row(key)
        if row is not None:
            _replace(draft, row, replica, room, spreads)
    return draft.row(key) != before


def _replace(draft: Draft, row: PartitionRow, replica: int, room: Room, spreads: Spreads) -> None:
    goal = reassignment.target(row)
    kept = [other for other in goal if other >= 0 and other != replica]
    successor = newcomer(draft, row, kept, spreads.of(row.topic_id), room)
    comes = successor is not None
    if not comes and not _has_taker(row, room.takers):
        successor = _returning(draft, row, replica)
    if successor is None:
        return
    wanted = tuple(successor if other == replica else other for other in goal)
    new = reassignment.redirected(draft, row, wanted)
    if new is not None and reassignment.keeps_minimum(draft, row, new):
        draft.put_row(new)
        spreads.moved(row, new)
        if comes:
            room.take(successor, row.key)


def _unfit(draft: Draft, row: PartitionRow) -> list[int]:
    """Replicas that are to be there once the row has moved, and should not: of brokers that are
    leaving, and newcomers whose broker has died, or whose storage refuses, before they had caught
    up."""
    return [
        replica
        for replica in reassignment.target(row)
        if replica >= 0 and (_is_leaving(draft, replica) or _fails_to_come(draft, row, replica))
    ]


def _fails_to_come(draft: Draft, row: PartitionRow, replica: int) -> bool:
    return replica in row.adding and (
        not draft.is_live(replica) or draft.state.refuses(row, replica)
    )


def _returning(draft: Draft, row: PartitionRow, replica: int) -> int | None:
    """In the place of one that was to come, where nobody else is there: one that was to go, need
    not any more, and has all."""
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
    """Why a row cannot move at present, whatever room there is. What is being deleted goes by
    itself."""
    topic = draft.state.topic_by_id(row.topic_id)
    if topic is None:
        return Obstacle.NO_TOPIC
    if topic.deletion_ms is not None:
        return None
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
