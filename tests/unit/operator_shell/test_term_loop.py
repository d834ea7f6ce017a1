"""Before and between terms: which Cluster is controlled, and what stops a take-over for good."""

import asyncio
from typing import Any

import pytest

from tests.unit.operator_shell.shell_world import NAMESPACE, NoEvents, ShellWorld
from tidemark_operator.certificates.certificates import OwnLeaf
from tidemark_operator.certificates.keepers import SecretKeeper
from tidemark_operator.clock import utc_now
from tidemark_operator.controller.epochs import EPOCH_MAX
from tidemark_operator.kube.errors import Unavailable
from tidemark_operator.kube.kinds import CLUSTER, PARTITION_SLICE
from tidemark_operator.leadership.terms import EpochTooLow, NotLeading
from tidemark_operator.metrics import Metrics
from tidemark_operator.settings import Settings
from tidemark_operator.term.broker_requests import BrokerRequests
from tidemark_operator.term.term_loop import TermLoop


class Shell(ShellWorld):
    """The fake API server, and the loop that would lead on it."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self.loop = TermLoop(
            Settings(namespace=NAMESPACE, **settings),
            "op",
            Metrics(),
            leads=lambda: self.leads,
            requests=BrokerRequests(),
            own_leaf=OwnLeaf(utc_now),
            keeper_of=lambda api: SecretKeeper(api, NAMESPACE),
        )

    async def find_cluster(self) -> str:
        return await self.loop._find_cluster(self.api)  # type: ignore[arg-type]

    async def try_a_term(self) -> None:
        await self.loop._try(self.api, object(), NoEvents())  # type: ignore[arg-type]


def older(name: str) -> dict[str, Any]:
    return {"name": name, "creationTimestamp": "2020-01-01T00:00:00Z"}


async def test_the_oldest_cluster_of_the_namespace_is_controlled() -> None:
    shell = Shell()
    shell.make(CLUSTER, "young", {})
    shell.make(CLUSTER, "old", {}, metadata=older("old"))
    assert await shell.find_cluster() == "old"


async def test_the_cluster_that_the_settings_name_is_controlled() -> None:
    shell = Shell(cluster="young")
    shell.make(CLUSTER, "young", {})
    shell.make(CLUSTER, "old", {}, metadata=older("old"))
    assert await shell.find_cluster() == "young"


async def test_a_cluster_that_is_made_later_is_noticed_at_once() -> None:
    shell = Shell()
    finding = asyncio.create_task(shell.find_cluster())
    while "list_all Cluster " not in shell.api.calls:  # noqa: ASYNC110 - it tells nobody
        await asyncio.sleep(0)
    shell.loop.arrived.append((shell.make(CLUSTER, "main", {}), False))
    shell.loop.drain()
    assert await asyncio.wait_for(finding, 5) == "main"


async def test_without_the_lease_no_cluster_is_looked_for() -> None:
    shell = Shell()
    shell.leads = False
    with pytest.raises(NotLeading):
        await shell.find_cluster()
    assert not shell.api.calls


async def test_the_last_epoch_is_said_and_not_passed() -> None:
    shell = Shell()
    shell.make_cluster()
    shell.loop._floor = EPOCH_MAX
    await shell.try_a_term()
    ready = shell.condition(CLUSTER, "main", "Ready")
    assert ready[:2] == ("False", "EpochsExhausted")
    assert shell.condition(CLUSTER, "main", "Stalled")[0] == "True"
    assert "controller" not in shell.status(CLUSTER, "main")


async def test_slices_that_cannot_be_used_stand_in_the_clusters_conditions_once() -> None:
    shell = Shell()
    shell.make_cluster()
    async with shell.term():
        pass
    del shell.server._objects[PARTITION_SLICE.kind, "main-05"]
    await shell.try_a_term()
    status, _, message = shell.condition(CLUSTER, "main", "Stalled")
    assert status == "True"
    assert "main-05" in message
    shell.loop.won()
    pulse = shell.loop.pulse()
    assert pulse.without_term_s is not None
    assert "main-05" in pulse.excuse, "a restart of the process would not help"
    shell.journal.clear()
    await shell.try_a_term()
    assert shell.journal == ["replace_status Cluster main"], "the epoch; the conditions say it"


async def test_a_higher_epoch_that_a_broker_has_seen_is_taken_over_above(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shell = Shell()
    shell.make_cluster()

    async def ends(*_: object) -> None:
        raise EpochTooLow(41)

    monkeypatch.setattr(shell.loop, "_one_term", ends)
    await shell.try_a_term()
    assert shell.loop._floor == 41


async def test_what_stops_a_term_that_no_condition_tells_is_a_fault() -> None:
    shell = Shell()
    shell.make_cluster()
    shell.loop.won()
    shell.api.fail("list_all Topic", Unavailable(503, "down"), times=100)
    await shell.try_a_term()
    pulse = shell.loop.pulse()
    assert pulse.leads
    assert pulse.without_term_s is not None
    assert not pulse.excuse
