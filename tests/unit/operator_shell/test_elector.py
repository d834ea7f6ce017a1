"""The Lease loop, turn by turn, on a clock that the test moves."""

import asyncio

import pytest

from tests.fake_api_server import FakeApiServer, FakeKubeApi
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.errors import Conflict
from tidemark_operator.kube.kinds import LEASE, Json
from tidemark_operator.leadership import elector as elector_module
from tidemark_operator.leadership.elector import Elector
from tidemark_operator.leadership.lease import LeaseName, LeaseTimes

TIMES = LeaseTimes.of_duration(15.0)


class Candidate:
    """One process that competes; ``news`` has the notifications of its main loop."""

    def __init__(self, server: FakeApiServer, name: str) -> None:
        self.api = FakeKubeApi(server, name)
        self.news: list[str] = []
        self.elector = Elector(
            KubernetesAccess("https://api"),
            LeaseName("ns", "operator", name),
            TIMES,
            on_started=lambda: self.news.append("won"),
            on_stopped=lambda: self.news.append("lost"),
            on_led=lambda: self.news.append("led"),
        )

    async def turn(self) -> bool:
        await self.elector._turn(self.api)  # type: ignore[arg-type]
        return self.elector.leads()


class ElectionWorld:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        monkeypatch.setattr(elector_module.time, "monotonic", lambda: self.now_s)
        self.server = FakeApiServer()

    def candidate(self, name: str) -> Candidate:
        return Candidate(self.server, name)

    @property
    def lease(self) -> Json:
        body = self.server.find(LEASE, "operator")
        assert body is not None
        return body["spec"]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> ElectionWorld:
    return ElectionWorld(monkeypatch)


async def test_the_first_candidate_leads_and_another_is_on_standby(world: ElectionWorld) -> None:
    one, two = world.candidate("one"), world.candidate("two")
    assert await one.turn()
    assert not await two.turn()
    assert (one.news, two.news) == (["won"], ["led"])
    assert world.lease["holderIdentity"] == "one"


async def test_a_renewing_leader_is_announced_once(world: ElectionWorld) -> None:
    one = world.candidate("one")
    for _ in range(5):
        assert await one.turn()
        world.now_s += TIMES.retry_s
    assert one.news == ["won"]


async def test_a_leader_that_cannot_renew_leads_until_its_deadline(world: ElectionWorld) -> None:
    one = world.candidate("one")
    assert await one.turn()
    # Both attempts until the deadline fail.
    one.api.fail("get Lease", times=2)
    world.now_s += TIMES.renew_deadline_s - 1
    assert await one.turn()
    world.now_s += 1
    assert not one.elector.leads(), "the deadline alone ends it, without a turn"
    assert not await one.turn()
    assert one.news == ["won", "lost"]


async def test_the_deadline_counts_from_before_the_renewal_was_sent(world: ElectionWorld) -> None:
    """Another candidate may take the Lease one duration after the write reached the server."""
    one = world.candidate("one")

    def slow(call: str) -> None:
        world.now_s += 3

    one.api.before = slow
    assert await one.turn()
    # The call took 3 s: the deadline counts from its start, so it is over now.
    world.now_s += TIMES.renew_deadline_s - 3
    assert not one.elector.leads()


async def test_a_renewal_of_unknown_outcome_is_no_renewal(world: ElectionWorld) -> None:
    one = world.candidate("one")
    assert await one.turn()
    world.now_s += TIMES.renew_deadline_s - 1
    # The renewal is stored, but its answer is lost: the leader cannot rely on it.
    one.api.fail("replace Lease", after=True)
    assert await one.turn()
    world.now_s += 1
    assert not one.elector.leads()


async def test_expired_lease_is_taken_after_its_full_duration(world: ElectionWorld) -> None:
    one, two = world.candidate("one"), world.candidate("two")
    assert await one.turn()
    assert not await two.turn()
    # Standbys measure the duration on their own clock, from when they saw the renewal.
    world.now_s += TIMES.duration_s
    assert not await two.turn(), "not before the duration is over"
    world.now_s += 0.1
    assert await two.turn()
    assert world.lease["leaseTransitions"] == 1
    assert not await one.turn()
    assert one.news == ["won", "led", "lost"]


async def test_each_renewal_notifies_a_candidate_that_another_leads(world: ElectionWorld) -> None:
    one, two = world.candidate("one"), world.candidate("two")
    for _ in range(3):
        assert await one.turn()
        for _ in range(2):
            assert not await two.turn()
        world.now_s += TIMES.retry_s
    assert two.news == ["led"] * 3
    assert one.news == ["won"]


async def test_a_candidate_looks_again_when_the_lease_may_be_taken(world: ElectionWorld) -> None:
    """A candidate must not sleep past the expiry of the Lease."""
    one, two = world.candidate("one"), world.candidate("two")
    assert await one.turn()
    assert not await two.turn()
    assert two.elector._pause_s() >= 0.8 * TIMES.retry_s
    # Shortly before the expiry, the pause shrinks to the remaining time.
    world.now_s += TIMES.duration_s - 0.3 * TIMES.retry_s
    assert not await two.turn()
    pause_s = two.elector._pause_s()
    assert pause_s < 0.4 * TIMES.retry_s
    world.now_s += pause_s
    assert await two.turn()


async def test_one_of_two_concurrent_candidates_wins(world: ElectionWorld) -> None:
    one, two, three = (world.candidate(name) for name in ("one", "two", "three"))
    assert await one.turn()
    assert not await two.turn()
    assert not await three.turn()
    world.now_s += TIMES.duration_s + 0.1
    # Two candidates write with the same resourceVersion: the API server accepts one.
    two.api.fail("replace Lease", Conflict(409, "the other was first"))
    assert not await two.turn()
    assert await three.turn()
    assert not await two.turn()
    assert two.news == ["led", "led"], "of one, then of three"
    assert three.news == ["led", "won"]


async def test_a_stopping_leader_releases_the_lease_and_another_leads_at_once(
    world: ElectionWorld,
) -> None:
    one, two = world.candidate("one"), world.candidate("two")
    competing = asyncio.create_task(one.elector._compete(one.api))  # type: ignore[arg-type]
    while not one.news:  # noqa: ASYNC110 - the loop tells by its news
        await asyncio.sleep(0)
    # Shutdown empties holderIdentity, so that the standby need not wait for the expiry.
    competing.cancel()
    await asyncio.gather(competing, return_exceptions=True)
    assert one.news == ["won", "lost"]
    assert not world.lease.get("holderIdentity")
    assert await two.turn()
