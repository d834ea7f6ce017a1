"""Periodic work of a term: renewal of authorities, leader balancing and reachability."""

import base64
import datetime as dt
import itertools
from collections.abc import AsyncIterator

import pytest

from tests.unit.controller.controller_world import row
from tests.unit.operator_shell.shell_world import ShellWorld
from tidemark.tls.files import TRUSTED
from tidemark_operator.certificates.authority import split
from tidemark_operator.certificates.certificates import ANNOUNCED_PAUSE
from tidemark_operator.clock import utc_now
from tidemark_operator.controller.state.controller_state import ControllerState
from tidemark_operator.controller.state.model import PartitionRow
from tidemark_operator.kube.kinds import BROKER, CLUSTER, SECRET, USER, Key
from tidemark_operator.reconcile.broker_reconciler import BrokerReconciler
from tidemark_operator.reconcile.cluster_reconciler import ClusterReconciler
from tidemark_operator.reconcile.user_reconciler import UserReconciler
from tidemark_operator.term.pacemaker import (
    BALANCE_LIMIT,
    CERTIFICATE_TURNS,
    TICK_S,
    UNREACHED_TURNS,
    Pacemaker,
)

ALICE = ShellWorld.key(USER, "alice")
CLIENTS = "tidemark.dev/renew-clients-certificates"


class PacedWorld(ShellWorld):
    """World whose clock the test sets."""

    def __init__(self) -> None:
        super().__init__()
        self.at = utc_now()
        self.now = lambda: self.at

    def pacemaker(self) -> Pacemaker:
        return Pacemaker(self.services, self.questions)

    async def turn(self) -> None:
        await self.pacemaker()._turn(CERTIFICATE_TURNS)

    async def queued(self) -> set[Key]:
        queue, found = self.services.queue, set()
        while queue.depth:
            key = await queue.get()
            queue.done(key)
            found.add(key)
        return found

    async def trusted(self) -> int:
        """Reconcile alice and return how many authorities the Secret contains."""
        await UserReconciler(self.services).reconcile(ALICE)
        body = self.server.find(SECRET, "alice")
        assert body is not None
        return len(split(base64.b64decode(body["data"][TRUSTED])))


@pytest.fixture
async def world() -> AsyncIterator[PacedWorld]:
    made = PacedWorld()
    made.make_cluster()
    made.make_broker(1)
    made.make_user(authentication={"type": "tls"})
    async with made.term():
        yield made


async def test_the_clients_authority_is_renewed_on_request_and_users_follow(
    world: PacedWorld,
) -> None:
    assert await world.trusted() == 1
    await world.queued()
    await world.turn()
    assert ALICE not in await world.queued()
    # The renewal is announced first: clients trust the new authority before it signs.
    world.annotate(CLUSTER, "main", **{CLIENTS: "please"})
    await world.turn()
    queued = await world.queued()
    assert ALICE in queued
    assert world.key(BROKER, "broker-1") not in queued, "the brokers' authority stays"
    assert await world.trusted() == 2
    # After the pause, the new authority signs the leaves.
    world.at += ANNOUNCED_PAUSE
    await world.turn()
    assert ALICE in await world.queued()
    assert await world.trusted() == 2


@pytest.mark.parametrize("name", ["main-ca", "main-clients-ca"])
async def test_damaged_authority_is_reported_by_the_cluster(world: PacedWorld, name: str) -> None:
    """A log line alone would go unnoticed until leaves expire."""
    await world.trusted()
    await world.services.certificates.authorities()
    await world.turn()
    sound = world.server.find(SECRET, name)
    assert sound is not None
    # The certificate in the Secret is damaged, for instance by a tool.
    damaged = world.server.replace("somebody", SECRET, {**sound, "data": {"tls.crt": "eA=="}})
    await world.turn()
    assert world.services.cluster_key in await world.queued()
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    status, reason, message = world.condition(CLUSTER, "main", "Ready")
    assert (status, reason) == ("False", "CertificatesUnusable")
    assert name in message
    assert world.condition(CLUSTER, "main", "Stalled")[0] == "True"
    world.server.replace("somebody", SECRET, {**damaged, "data": sound["data"]})
    await world.turn()
    await ClusterReconciler(world.services).reconcile(world.services.cluster_key)
    assert world.condition(CLUSTER, "main", "Stalled")[0] == "False"


async def test_renewal_waits_until_every_user_was_reconciled(world: PacedWorld) -> None:
    world.annotate(CLUSTER, "main", **{CLIENTS: "please"})
    await world.services.client_certificates.leaf("alice", None)
    await world.turn()
    # The pause of the renewal is over when the next term begins.
    world.at += ANNOUNCED_PAUSE + dt.timedelta(days=1)
    # The new controller has issued one leaf, but it does not know every user yet.
    async with world.term():
        await world.services.client_certificates.leaf("alice", None)
        await world.queued()
        await world.turn()
        assert ALICE not in await world.queued(), "who else has a leaf is not known yet"
        await world.trusted()
        await world.turn()
        assert ALICE in await world.queued()


async def test_leaders_of_1000_partitions_return_within_two_minutes(
    world: PacedWorld,
) -> None:
    """Leaders must return at the rate of the balance limit, in every pass."""
    state = world.services.state
    world.make_broker(2)
    await world.start_broker(1)
    await world.start_broker(2)
    for number in range(1000):
        # All partitions prefer broker 1, but broker 2 leads them.
        state.put_row(row((1, 2), partition=number, leader=2))
    moved = []
    while state.partitions.unbalanced:
        await world.turn()
        moved.append(sum(found.leader == 1 for found in state.all_rows()))
    assert len(moved) * TICK_S <= 120
    # At most the limit per pass, since every election interrupts the partition's clients.
    steps = [after - before for before, after in itertools.pairwise([0, *moved])]
    assert max(steps) == BALANCE_LIMIT, "and not all at once"


async def test_leaders_are_held_back_from_a_flapping_broker(
    world: PacedWorld,
) -> None:
    state, pacemaker = world.services.state, world.pacemaker()
    world.make_broker(2)
    await world.start_broker(2)
    leaders = []
    # Broker 1 restarts twice in a short time.
    for incarnation in (1, 11, 12):
        await world.start_broker(1, incarnation)
        made = row((1, 2), leader=2, partition=incarnation)
        state.put_row(made)
        await pacemaker._turn(CERTIFICATE_TURNS)
        leaders.append(_leader(state, made))
    assert leaders == [1, 1, 2]
    assert "LeadersHeldBack" in world.events.reasons
    # After a minute without a restart, the leaders return.
    await pacemaker._turn(CERTIFICATE_TURNS + 60)
    assert _leader(state, made) == 1


def _leader(state: ControllerState, made: PartitionRow) -> int:
    found = state.row(made.key)
    assert found is not None
    return found.leader


async def test_leaderships_return_only_to_a_live_in_sync_broker(world: PacedWorld) -> None:
    state = world.services.state
    world.make_broker(2)
    await world.start_broker(2)
    state.put_row(row((1, 2), leader=2, partition=1))
    # Broker 1 is dead, and its second replica is out of sync.
    state.put_row(row((1, 2), leader=2, partition=2, isr=(2,)))
    await world.turn()
    assert {found.leader for found in state.all_rows()} == {2}
    await world.start_broker(1)
    state.put_row(row((1, 2), leader=2, partition=1))
    await world.turn()
    assert {found.partition: found.leader for found in state.all_rows()} == {1: 1, 2: 2}


async def test_a_controller_reports_whether_a_broker_has_reached_it(
    world: PacedWorld,
) -> None:
    await world.start_broker(1)
    await world.queued()
    pacemaker = Pacemaker(world.services, world.questions)
    cluster, broker = world.services.cluster_key, world.key(BROKER, "broker-1")
    # Without an acknowledged state for this long, the controller may be cut off.
    await pacemaker._turn(UNREACHED_TURNS - 1)
    assert cluster not in await world.queued()
    await pacemaker._turn(UNREACHED_TURNS)
    assert {cluster, broker} <= await world.queued()
    await ClusterReconciler(world.services).reconcile(cluster)
    await BrokerReconciler(world.services, world.reflector).reconcile(broker)
    assert world.condition(CLUSTER, "main", "Ready")[:2] == ("False", "BrokersUnreachable")
    assert world.condition(BROKER, "broker-1", "Ready")[:2] == ("False", "BrokerUnreachable")
    # The first acknowledgement clears both conditions.
    world.acknowledge(1)
    await pacemaker._turn(UNREACHED_TURNS + 1)
    assert {cluster, broker} <= await world.queued()
    await ClusterReconciler(world.services).reconcile(cluster)
    assert world.condition(CLUSTER, "main", "Ready")[:2] == ("True", "Serving")
