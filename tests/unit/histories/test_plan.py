"""A plan follows from its seed, has actions of every kind, and requires only what is served."""

from collections import defaultdict

import pytest

from tests.histories.levels import MEANING
from tests.histories.plan import (
    ANY,
    ELECT,
    LEADER,
    MEMBER,
    OLD_HEAD,
    OPERATOR,
    PRODUCER,
    READER,
    RESTORE,
    TRANSFORMER,
    WRITER,
    WRONGS,
    make,
)

ALL = frozenset(range(80))
SECONDS = 30.0


@pytest.mark.parametrize("seed", range(20))
def test_plan_has_clients_of_every_kind(seed: int) -> None:
    plan = make(seed, SECONDS, ALL, operator=True)
    assert {client.kind for client in plan.clients} == {
        PRODUCER,
        WRITER,
        READER,
        MEMBER,
        TRANSFORMER,
    }
    assert len({client.name for client in plan.clients}) == len(plan.clients)
    assert plan.left_out == ()
    assert sum(fault.after_s + fault.lasts_s for fault in plan.faults) >= SECONDS


def test_the_same_seed_is_the_same_plan() -> None:
    assert make(7, SECONDS, ALL, operator=True) == make(7, SECONDS, ALL, operator=True)
    assert make(7, SECONDS, ALL, operator=True) != make(8, SECONDS, ALL, operator=True)


@pytest.mark.parametrize("seed", range(20))
def test_the_members_of_a_group_assign_alike(seed: int) -> None:
    assignors: dict[str, set[str]] = defaultdict(set)
    for client in make(seed, SECONDS, ALL, operator=True).clients:
        assignors[client.group].add(client.assignor)
    assert all(len(names) == 1 for group, names in assignors.items() if group)


def test_clients_of_unserved_apis_are_left_out() -> None:
    # Only Produce, Fetch and Metadata are served.
    names = {
        client.name for client in make(1, SECONDS, frozenset({0, 1, 3}), operator=True).clients
    }
    assert names == {"plain", "reader-read_uncommitted"}
    # InitProducerId is enough for idempotence, but not for transactions.
    plan = make(1, SECONDS, frozenset({0, 1, 3, 22}), operator=True)
    assert {client.name for client in plan.clients} == names | {"idempotent"}
    assert "writer1" in plan.left_out


def test_a_plan_disturbs_only_available_nodes() -> None:
    # 50 seeds are enough to draw every kind and role.
    roles, kinds = set(), set()
    for seed in range(50):
        plan = make(seed, SECONDS, frozenset({0}), operator=False)
        roles |= {fault.role for fault in plan.faults}
        kinds |= {fault.kind for fault in plan.faults}
    assert roles == {"broker", "leader"}
    assert not kinds & {ELECT, RESTORE, OLD_HEAD}
    plans = [make(seed, SECONDS, ALL, operator=True) for seed in range(50)]
    assert {fault.role for plan in plans for fault in plan.faults} > roles | {OPERATOR}
    assert {fault.kind for plan in plans for fault in plan.faults} >= {ELECT, RESTORE, OLD_HEAD}


def test_the_faults_of_a_plan_can_be_chosen() -> None:
    plan = make(1, SECONDS, ALL, operator=True, kinds=(OLD_HEAD,))
    assert {fault.kind for fault in plan.faults} == {OLD_HEAD}
    assert {fault.role for fault in plan.faults} == {ANY, LEADER}


def test_every_wrong_client_causes_an_anomaly() -> None:
    plan = make(1, SECONDS, ALL, operator=False, wrongs=tuple(WRONGS))
    assert {client.wrong for client in plan.clients} == {"", *WRONGS}
    assert all(anomalies <= set(MEANING) for _, anomalies, _ in WRONGS.values())
