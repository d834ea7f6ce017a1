"""Fetch sessions of followers (KIP-227): a round costs only what has changed, and conveys the same
as a full fetch."""

import asyncio
import itertools
import random
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.unit.replication.replica_nodes import (
    TOPIC,
    TOPIC_ID,
    ReplicaNode,
    batch,
    dialer_of,
    row,
)
from tidemark.tls.identity import TlsIdentity
from tidemark_broker.log import NotCached, reading
from tidemark_broker.purgatory import Purgatory
from tidemark_broker.replication.following import fetch_responses, fetcher, follower_fetches
from tidemark_broker.replication.following.fetcher import (
    FetcherContext,
    FetchLimits,
    ReplicaFetcher,
)
from tidemark_broker.replication.following.follower_fetch_session import ReplicaFetchSessionCache
from tidemark_broker.replication.following.wire import (
    ForgottenPartition,
    ReplicaFetchPartition,
    ReplicaFetchRequest,
    ReplicaFetchResponse,
)
from tidemark_broker.replication.partition import (
    Partition,
    consumer_reads,
    isr_and_high_watermark,
    log_start,
    produce,
    remote_end,
)
from tidemark_broker.replication.partition.isr_decisions import FollowerProgress
from tidemark_broker.replication.threads import in_read_thread
from tidemark_broker.replication.types import after

Nodes = Callable[[int], ReplicaNode]
PARTITIONS = 20


class RecordedLink:
    """Connection of a follower to the leader's service. It records requests and responses."""

    def __init__(self, leader: ReplicaNode) -> None:
        self.leader = leader
        self.requests: list[ReplicaFetchRequest] = []
        self.answers: list[ReplicaFetchResponse] = []

    async def request(self, request: ReplicaFetchRequest, _: type, __: float) -> Any:
        self.requests.append(request)
        peer = TlsIdentity("c", request.replica_id)
        self.answers.append(await self.leader.service.handle(request, peer, room()))
        return self.answers[-1]

    @property
    def named(self) -> list[int]:
        """Partitions that the last request named."""
        return [partition.partition for partition in self.requests[-1].partitions]

    @property
    def answered(self) -> list[int]:
        """Partitions in the last response."""
        return [partition.partition for partition in self.answers[-1].partitions]


class FetcherPair:
    """Node 1 leads all partitions. Node 2 follows them through a real fetcher."""

    def __init__(self, one: ReplicaNode, two: ReplicaNode) -> None:
        self.one, self.two = one, two
        self.line = RecordedLink(one)
        self.fetcher = ReplicaFetcher(
            1, FetcherContext(two.context, FetchLimits(wait_max_ms=0), dialer_of, lambda: 2)
        )

    async def start(self, count: int = PARTITIONS) -> "FetcherPair":
        rows = [row(partition=number) for number in range(count)]
        await self.one.receive(*rows, full=True)
        await self.two.receive(*rows, full=True)
        for partition in self.two.manager.partitions:
            self.fetcher.add(partition)
        await self.settle()
        return self

    async def round(self) -> None:
        await self.fetcher._round(self.line)

    async def settle(self) -> None:
        """Run rounds until one conveys nothing."""
        await self.round()
        while self.line.answered or self.line.named:
            await self.round()

    def at(self, now_s: float) -> None:
        self.one.now_s = self.two.now_s = now_s

    def led(self, number: int = 0) -> Partition:
        return hosted(self.one, number)

    def followed(self, number: int = 0) -> Partition:
        return hosted(self.two, number)

    def progress(self, number: int = 0) -> FollowerProgress:
        leader = self.led(number).leader
        assert leader is not None
        return leader.progress()[2]


def hosted(node: ReplicaNode, number: int) -> Partition:
    found = node.manager.get(TOPIC, number)
    assert found is not None
    return found


async def append(partition: Partition) -> None:
    result = await produce.append(partition, batch(), acks=1, timeout_ms=0)
    assert result.error is ErrorCode.none


# ---------------------------------------------------------------- cost of a round


async def test_a_round_conveys_only_changed_partitions(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    # The first request creates the session with all partitions. The second one names none.
    assert [len(request.partitions) for request in pair.line.requests[:2]] == [PARTITIONS, 0]
    # One record takes two rounds: one returns it, the next confirms it and returns the high
    # watermark.
    await append(pair.led(7))
    await pair.round()
    assert (pair.line.named, pair.line.answered) == ([], [7])
    await pair.round()
    assert (pair.line.named, pair.line.answered) == ([7], [7])
    assert pair.followed(7).high_watermark == pair.led(7).high_watermark == 1
    await pair.round()
    assert (pair.line.named, pair.line.answered) == ([], [])


async def test_leader_state_without_new_records_reaches_the_follower(node: Nodes) -> None:
    """The end of the tier is not announced by an event: the leader finds it in a periodic check."""
    pair = await FetcherPair(node(1), node(2)).start()
    remote_end.note(pair.led(3), 41, 0)
    await pair.led(3).write_changes()
    pair.at(pair.one.now_s + follower_fetches.CHECK_INTERVAL_S)
    await pair.round()
    assert pair.line.answered == [3]
    assert pair.followed(3).log.highest_remote_offset == 41


async def test_a_leader_that_does_not_answer_is_overdue_until_it_answers(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    assert not pair.fetcher.is_overdue
    answers = pair.line.request
    began, may_answer = asyncio.Event(), asyncio.Event()

    async def late(request: ReplicaFetchRequest, kind: type, timeout_s: float) -> Any:
        began.set()
        await may_answer.wait()
        return await answers(request, kind, timeout_s)

    pair.line.request = late  # type: ignore[method-assign]
    # The leader owes a response, but for no time yet.
    round_ = asyncio.create_task(pair.round())
    await began.wait()
    assert not pair.fetcher.is_overdue
    pair.at(pair.one.now_s + 1)
    assert pair.fetcher.is_overdue
    may_answer.set()
    await round_
    assert not pair.fetcher.is_overdue


async def test_a_leader_that_cannot_be_reached_is_overdue(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    # No address of the leader is known here.
    for _ in range(2):
        with pytest.raises(ConnectionError):
            await pair.fetcher._session()
        pair.at(pair.one.now_s + 1)
    assert pair.fetcher.is_overdue
    # Without partitions nothing is requested, and nothing is owed.
    for partition in pair.two.manager.partitions:
        pair.fetcher.remove(partition.tp)
    await pair.round()
    assert not pair.fetcher.is_overdue


async def test_a_follower_reports_its_own_changes(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    await append(pair.led(5))
    await pair.settle()
    log_start.raise_to(pair.followed(5), 1)
    await pair.two.upkeep.checkpoint()
    pair.at(pair.one.now_s + fetcher.CHECK_INTERVAL_S)
    await pair.round()
    assert pair.line.named == [5]
    assert pair.progress(5).log_start_offset == 1


async def test_the_quick_check_of_a_fetch_agrees_with_the_full_checks(node: Nodes) -> None:
    """A fetch that passes has no error and no divergence, by the rules of the full checks."""
    leader = node(1)
    await leader.receive(row())
    for _ in range(3):
        await append(leader.partition)
    await leader.receive(row(leader_epoch=1, partition_epoch=1))
    for _ in range(3):
        await append(leader.partition)
    # Node 2 has everything, so the log may start at 2.
    isr_and_high_watermark.follower_fetched(
        leader.partition, 2, isr_and_high_watermark.FollowerFetch(6, 0, 0, 2, 6, leader.now_s)
    )
    log_start.raise_to(leader.partition, 2)
    await leader.upkeep.checkpoint()
    passed = 0
    for epoch, last, offset, local_start, replica in itertools.product(
        (-1, 0, 1, 2), (-1, 0, 1, 2), range(9), (0, 3), (2, 3)
    ):
        requested = ReplicaFetchPartition(
            topic_id=TOPIC_ID,
            partition=0,
            current_leader_epoch=epoch,
            fetch_offset=offset,
            last_fetched_epoch=last,
            log_start_offset=0,
            local_log_start_offset=local_start,
            tiered_epoch=0,
            max_bytes=1,
        )
        if fetch_responses.is_in_step(leader.partition, replica, requested):
            passed += 1
            error = fetch_responses.check(leader.partition, replica, requested)
            assert error is ErrorCode.none, requested
            assert consumer_reads.diverging_end(leader.partition.log, offset, last) is None
    # Offsets 2 to 6 in epoch 1, and without a known epoch.
    assert passed == 10


# ---------------------------------------------------------------- new leaders


async def test_a_waiting_fetch_ends_when_this_broker_starts_to_lead(node: Nodes) -> None:
    """The follower's next fetch names the partition, so acknowledgements need not wait for the end
    of this one."""
    pair = await FetcherPair(node(1), node(2)).start(2)
    pair.at(pair.one.now_s + 60)
    request = fetch(pair, max_wait_ms=20_000)
    waiting = asyncio.create_task(
        pair.one.service.handle(request, TlsIdentity("c", request.replica_id), room())
    )
    await asyncio.sleep(0.05)
    assert not waiting.done()
    # Another partition was led by the follower until now.
    pair.at(pair.one.now_s + 0.1)
    await pair.one.receive(row(partition=2, leader_epoch=1, partition_epoch=1))
    answer = await asyncio.wait_for(waiting, 5)
    assert (answer.error_code, answer.partitions) == (0, ())
    # The follower may not know yet, so its next fetches wait only briefly.
    pair.fetcher._handler.answered(answer.session_id)
    request = fetch(pair, max_wait_ms=20_000)
    await asyncio.wait_for(
        pair.one.service.handle(request, TlsIdentity("c", request.replica_id), room()), 5
    )


async def elected(pair: FetcherPair) -> tuple[asyncio.Event, asyncio.Task[Any]]:
    """Let node 1 receive partition 1's next leader epoch, which node 2 follows already.

    Its file is written, and it leads, once the event is set. The task ends then.
    """
    later = row(partition=1, leader_epoch=1, partition_epoch=1)
    await pair.two.receive(later)
    pair.fetcher.add(pair.followed(1))
    written, persist = asyncio.Event(), pair.one.context.persist

    async def persist_later(*arguments: Any) -> None:
        await written.wait()
        await persist(*arguments)

    pair.one.context.persist = persist_later
    leading = asyncio.create_task(pair.one.receive(later))
    await asyncio.sleep(0.05)
    return written, leading


async def test_a_fetch_of_an_elected_replica_waits_until_it_leads(node: Nodes) -> None:
    """An error would make the follower pause for longer than the leader needs for its files."""
    pair = await FetcherPair(node(1), node(2)).start(2)
    written, leading = await elected(pair)
    await pair.round()
    assert (pair.line.named, pair.line.answered) == ([1], [])
    written.set()
    await leading
    await pair.round()
    assert pair.line.answered == [1]
    assert pair.progress(1).next_offset == 0


async def test_a_fetch_that_waits_for_the_leader_counts_once_it_leads(node: Nodes) -> None:
    """Otherwise the follower of an idle partition would leave the ISR: no later fetch names it."""
    pair = await FetcherPair(node(1), node(2)).start(2)
    # Soon after another leadership its fetch would wait only briefly.
    pair.at(pair.one.now_s + 60)
    written, leading = await elected(pair)
    request = replace(pair.fetcher._request(), max_wait_ms=20_000)
    waiting = asyncio.create_task(
        pair.one.service.handle(request, TlsIdentity("c", request.replica_id), room())
    )
    await asyncio.sleep(0.05)
    # This broker starts to lead while the request waits.
    pair.at(pair.one.now_s + 0.1)
    written.set()
    await leading
    answer = await asyncio.wait_for(waiting, 5)
    assert [result.partition for result in answer.partitions] == [1]
    assert pair.progress(1).next_offset == 0


async def test_a_leader_that_is_not_ready_is_queried_again_soon(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start(2)
    # The follower is the first to receive the new epoch.
    later = row(partition=1, leader_epoch=1, partition_epoch=1)
    await pair.two.receive(later)
    pair.fetcher.add(pair.followed(1))
    await pair.round()
    assert pair.line.answered == [1]
    await pair.one.receive(later)
    await pair.round()
    assert pair.line.named == [], "it backs off"
    pair.at(pair.one.now_s + 0.05)
    await pair.round()
    assert pair.line.named == [1]
    assert pair.progress(1).next_offset == 0


# ---------------------------------------------------------------- effect on the ISR


async def test_partitions_that_are_not_named_count_as_fetched(node: Nodes) -> None:
    """A partition is idle for longer than replica.lag.time.max.ms, then receives records. The
    follower must stay in sync."""
    proposed: list[Any] = []
    pair = await FetcherPair(node(1), node(2)).start(2)
    pair.one.context.propose_isr = lambda partition, change: proposed.append(change)
    start_s = pair.one.now_s
    for number in range(1, 9):
        pair.at(start_s + 10 * number)
        await pair.round()
        assert pair.line.named == []
    await append(pair.led(1))
    pair.at(start_s + 85)
    isr_and_high_watermark.shrink_isr(pair.led(1))
    assert pair.progress(1).last_caught_up_s == start_s + 80
    assert not proposed

    pair.at(start_s + 111)  # no fetch since 80 s: 31 s behind
    isr_and_high_watermark.shrink_isr(pair.led(1))
    assert [change.new_isr for change in proposed] == [(1,)]


async def test_a_forgotten_partition_does_not_count_as_fetched(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    start_s = pair.one.now_s
    pair.fetcher.remove(pair.followed(4).tp)
    pair.at(start_s + 0.5)
    await pair.round()
    assert [item.partition for item in pair.line.requests[-1].forgotten] == [4]
    pair.at(start_s + 0.9)
    await pair.round()
    assert pair.progress(4).last_fetch_s == start_s
    assert pair.progress(3).last_fetch_s == start_s + 0.9


async def test_a_leader_reports_another_epoch_of_an_idle_partition(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    await pair.one.receive(row(partition=6, leader_epoch=1, partition_epoch=1))
    await pair.round()
    # The session's partition has the old epoch: the leader fences it although the request does
    # not name it.
    (result,) = pair.line.answers[-1].partitions
    assert (result.partition, result.error_code) == (6, int(ErrorCode.fenced_leader_epoch.value))
    leader = pair.led(6).leader
    assert leader is not None
    assert leader.progress()[2].next_offset == -1
    # The follower backs off, receives the epoch itself, and fetches in it.
    await pair.two.receive(row(partition=6, leader_epoch=1, partition_epoch=1))
    pair.fetcher.add(pair.followed(6))
    await pair.settle()
    assert pair.progress(6).next_offset == 0


@pytest.mark.parametrize("seed", range(3))
async def test_a_session_conveys_the_same_as_a_full_fetch(node: Nodes, seed: int) -> None:
    """Follower 2 uses a session and follower 3 none, and both fetch at the same times. After every
    step the leader knows the same of both, so it decides the same about the ISR."""
    chance = random.Random(seed)
    steps = [
        (chance.choices(("append", "round", "lead"), (10, 20, 1))[0], chance.randrange(3))
        for _ in range(100)
    ]
    await _compare([node(number) for number in (1, 2, 3)], steps)


async def _compare(nodes: list[ReplicaNode], steps: list[tuple[str, int]]) -> None:
    one, two, three = nodes
    rows = {n: row(partition=n, replicas=(1, 2, 3), isr=(1, 2, 3)) for n in range(3)}
    pair, line = FetcherPair(one, two), RecordedLink(one)
    for node in nodes:
        await node.receive(*rows.values(), full=True)
    for partition in two.manager.partitions:
        pair.fetcher.add(partition)
    # The session of this fetcher is reset before each round, so every request is a full fetch.
    full = ReplicaFetcher(
        1, FetcherContext(three.context, FetchLimits(wait_max_ms=0), dialer_of, lambda: 3)
    )
    for partition in three.manager.partitions:
        full.add(partition)
    for kind, value in [("round", 1), *steps, ("round", 1)]:
        if kind == "append":
            await append(hosted(one, value))
        elif kind == "lead":
            epoch = rows[value].leader_epoch + 1
            rows[value] = replace(rows[value], leader_epoch=epoch, partition_epoch=epoch)
            for node in nodes:
                await node.receive(rows[value])
            pair.fetcher.add(hosted(two, value))
            full.add(hosted(three, value))
        else:
            # Rounds are 0.1 to 0.8 s apart, sometimes beyond the check interval.
            one.now_s = two.now_s = three.now_s = one.now_s + 0.1 + value / 3
            full._handler.reset()
            await pair.fetcher._round(pair.line)
            await full._round(line)
        for number in range(3):
            leader = hosted(one, number).leader
            assert leader is not None
            known = leader.progress()
            # Only the broker epochs differ, which are the brokers' ids here.
            assert known[2]._replace(broker_epoch=0) == known[3]._replace(broker_epoch=0)


# ---------------------------------------------------------------- end of a session


async def test_a_lost_response_leads_to_a_full_fetch(node: Nodes) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    await append(pair.led(2))
    # The leader handles the request, but its response never arrives.
    lost = pair.fetcher._request()
    await pair.one.service.handle(lost, TlsIdentity("c", lost.replica_id), room())
    await pair.fetcher._round(pair.line)  # continues from the last answered request's epoch
    assert pair.line.answers[-1].error_code == int(ErrorCode.invalid_fetch_session_epoch.value)
    await pair.round()
    assert len(pair.line.named) == PARTITIONS
    await pair.settle()
    assert pair.followed(2).next_offset == 1


def fetch(pair: FetcherPair, **changes: Any) -> ReplicaFetchRequest:
    handler = pair.fetcher._handler
    request = ReplicaFetchRequest(
        replica_id=2,
        broker_epoch=2,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        partitions=(),
        session_id=handler.session_id,
        session_epoch=handler.epoch,
    )
    return replace(request, **changes)


async def test_only_the_next_request_of_the_same_registration_continues_a_session(
    node: Nodes,
) -> None:
    pair = await FetcherPair(node(1), node(2)).start()
    handler = pair.fetcher._handler

    async def answered(**changes: int) -> ErrorCode:
        answer = await pair.one.service.handle(fetch(pair, **changes), TlsIdentity("c", 2), room())
        return ErrorCode(answer.error_code)

    # A wrong session id, then a broker epoch that the leader does not know yet.
    unknown = await answered(session_id=handler.session_id ^ 1)
    assert unknown is ErrorCode.fetch_session_id_not_found
    assert await answered(broker_epoch=3) is ErrorCode.stale_broker_epoch  # not known yet
    # The follower has registered again: its session belongs to the former registration.
    await pair.one.receive(registered={2: 3})
    assert await answered() is ErrorCode.stale_broker_epoch
    assert await answered(broker_epoch=3) is ErrorCode.invalid_fetch_session_epoch
    # The failed request has ended the session.
    assert await answered(broker_epoch=3) is ErrorCode.fetch_session_id_not_found


def request_of(replica_id: int, *numbers: int, epoch: int = 0, session_id: int = 0) -> Any:
    return ReplicaFetchRequest(
        replica_id=replica_id,
        broker_epoch=1,
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        partitions=tuple(
            ReplicaFetchPartition(
                topic_id=TOPIC_ID,
                partition=number,
                current_leader_epoch=0,
                fetch_offset=0,
                last_fetched_epoch=-1,
                log_start_offset=0,
                local_log_start_offset=0,
                tiered_epoch=0,
                max_bytes=1,
            )
            for number in numbers
        ),
    )


def test_sessions_and_their_partitions_are_limited() -> None:
    cache = ReplicaFetchSessionCache(Purgatory(), sessions_max=2, partitions_max=3)

    def begin(replica_id: int, *numbers: int, now_s: float = 0.0) -> int:
        session = cache.of(request_of(replica_id, *numbers), now_s)
        assert not isinstance(session, ErrorCode)
        for partition in request_of(replica_id, *numbers).partitions:
            session.name(partition)
        return session.session_id

    assert begin(1, 0, 1, 2, 3) == 0, "more partitions than all sessions may have"
    # Follower 1 takes two of three partitions, so follower 2 has room for one.
    first = begin(1, 0, 1)
    assert first != 0
    assert begin(2, 0, 1) == 0
    assert begin(2, 0) != 0
    # Both slots are taken until one of the sessions ends or is idle.
    assert begin(3) == 0, "a third session"
    too_many = cache.of(request_of(1, 4, epoch=1, session_id=first), 0.0)
    assert too_many is ErrorCode.invalid_fetch_session_epoch
    assert len(cache) == 1
    assert begin(3) != 0
    assert begin(4) == 0
    assert begin(4, now_s=1000.0) != 0, "unused sessions make room"


def test_a_session_epoch_wraps_to_one() -> None:
    assert (after(0), after(1), after(2**31 - 1)) == (1, 2, 1)


async def test_a_session_survives_overlapping_requests(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two requests of one session at the same time. The project's own follower never sends them."""
    pair = await FetcherPair(node(1), node(2)).start(2)
    serve, led = pair.one.service, pair.led()
    key = (TOPIC_ID, 0)
    partition_request = pair.fetcher._handler.session_partitions[key]
    await append(led)

    # Nothing is in the page cache, so the first request reads in a thread.
    def not_cached(*_: object, **__: object) -> None:
        raise NotCached

    monkeypatch.setattr(reading, "read_cached", not_cached)
    first = replace(
        pair.line.requests[-1],
        session_id=pair.fetcher._handler.session_id,
        session_epoch=pair.fetcher._handler.epoch,
        partitions=(partition_request,),
        max_wait_ms=0,
    )
    second = replace(
        first,
        session_epoch=after(first.session_epoch),
        partitions=(),
        forgotten=(ForgottenPartition(topic_id=TOPIC_ID, partition=0),),
    )
    over = threading.Event()
    # All read threads are occupied: the first request waits, and the second one forgets its
    # partition.
    busy = [asyncio.ensure_future(in_read_thread(over.wait)) for _ in range(4)]
    await asyncio.sleep(0)
    slow = asyncio.ensure_future(serve.handle(first, TlsIdentity("c", 2), room()))
    await asyncio.sleep(0)
    assert (await serve.handle(second, TlsIdentity("c", 2), room())).error_code == 0
    over.set()
    assert (await slow).partitions == ()
    await asyncio.gather(*busy)
    # The late result of the first request must not bring the partition back.
    session = serve._sessions._by_replica[2]
    assert [cached.key for cached in session.due if cached.key == key] == []


async def test_a_response_to_a_follower_is_limited_by_the_leader(
    node: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The response is read on the event loop and kept in memory, so the request's own limit does
    not suffice."""
    monkeypatch.setattr(follower_fetches, "RESPONSE_BYTES_MAX", 3 * len(batch()))
    pair = await FetcherPair(node(1), node(2)).start(2)
    partition_requests = [
        replace(session_partition, max_bytes=2**31 - 1)
        for session_partition in pair.fetcher._handler.session_partitions.values()
    ]
    # Four batches are waiting, and the response has room for three.
    for number in (0, 0, 1, 1):
        await append(pair.led(number))
    request = replace(
        pair.line.requests[0],
        partitions=tuple(partition_requests),
        max_bytes=2**31 - 1,
        session_epoch=-1,
    )
    answer = await pair.one.service.handle(request, TlsIdentity("c", request.replica_id), room())
    assert [len(partition.records) // len(batch()) for partition in answer.partitions] == [2, 1]
