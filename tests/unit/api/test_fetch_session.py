"""Fetch sessions of clients (KIP-227): continuation, the partitions of a response, and eviction."""

import uuid
from collections.abc import Hashable, Iterable
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from tidemark.logfiles.leader_epochs import EpochEnd
from tidemark_broker.api.fetch_session import (
    FetchContext,
    FetchMetadata,
    FetchSessionCache,
    Key,
    PartitionRequest,
)
from tidemark_broker.replication.types import FINAL_EPOCH, IDLE_S, INITIAL_EPOCH, FetchResult

TOPIC_ID = uuid.UUID(int=7)


def partition_request(
    partition: int, offset: int = 0, *, topic_id: uuid.UUID | None = None
) -> PartitionRequest:
    return PartitionRequest(
        topic="t", topic_id=topic_id, partition=partition, offset=offset, max_bytes=100
    )


def by_key(*requests: PartitionRequest) -> dict[Key, PartitionRequest]:
    return {request.key: request for request in requests}


def good(high_watermark: int = 0, **values: Any) -> FetchResult:
    return FetchResult(
        error=ErrorCode.none, high_watermark=high_watermark, log_start_offset=0, **values
    )


class SessionCacheWorld:
    """Session cache with a clock that the test moves."""

    def __init__(self, slots: int = 10, partitions_max: int = 100) -> None:
        self.cache = FetchSessionCache(slots=slots, partitions_max=partitions_max)
        self.now_s = 0.0

    def context(
        self,
        session_id: int = 0,
        epoch: int = INITIAL_EPOCH,
        *requests: PartitionRequest,
        forgotten: Iterable[int] = (),
        by_id: bool = False,
        who: Hashable = "me",
    ) -> FetchContext | ErrorCode:
        return self.cache.context(
            FetchMetadata(session_id, epoch, by_id, who),
            by_key(*requests),
            [("t", number) for number in forgotten],
            self.now_s,
        )

    def fetch(
        self, *args: Any, results: dict[int, FetchResult] | None = None, **values: Any
    ) -> tuple[int, list[int]] | ErrorCode:
        """Return the session's id and the partitions in the response. ``results`` has what is
        found; other partitions have a high watermark of 0."""
        context = self.context(*args, **values)
        if isinstance(context, ErrorCode):
            return context
        return self.end(context, results or {})

    def end(
        self, context: FetchContext, results: dict[int, FetchResult]
    ) -> tuple[int, list[int]] | ErrorCode:
        found = [(request, results.get(request.partition, good())) for request in context.requests]
        answered = context.answered(found, self.now_s)
        if isinstance(answered, ErrorCode):
            return answered
        session_id, included = answered
        return session_id, [
            item.partition for (item, _), is_one in zip(found, included, strict=True) if is_one
        ]

    def begin(self, partitions: int = 1, who: Hashable = "me", **values: Any) -> int:
        answer = self.fetch(0, 0, *map(partition_request, range(partitions)), who=who, **values)
        assert not isinstance(answer, ErrorCode)
        return answer[0]


#: For a session whose next epoch is 1: (is its id sent, epoch) -> the error, or whether the
#: response belongs to a session: "same", "new" or None.
RULES = [
    (False, INITIAL_EPOCH, "new"),
    (False, FINAL_EPOCH, None),
    (False, 5, ErrorCode.fetch_session_id_not_found),
    (False, -2, ErrorCode.fetch_session_id_not_found),
    (True, INITIAL_EPOCH, "new"),
    (True, FINAL_EPOCH, None),
    (True, 1, "same"),
    (True, 2, ErrorCode.invalid_fetch_session_epoch),
    (True, -2, ErrorCode.invalid_fetch_session_epoch),
]


@pytest.mark.parametrize(("is_named", "epoch", "outcome"), RULES)
def test_a_request_continues_starts_or_ends_a_session(
    is_named: bool, epoch: int, outcome: Any
) -> None:
    cache = SessionCacheWorld()
    first = cache.begin()
    answer = cache.fetch(first if is_named else 0, epoch, partition_request(0))
    if isinstance(outcome, ErrorCode):
        assert answer is outcome
        return
    assert not isinstance(answer, ErrorCode)
    session_id, _ = answer
    assert (session_id == first) is (outcome == "same")
    assert (session_id == 0) is (outcome is None)
    # A full request ends the session whose id it has, and no other.
    continued = cache.fetch(first, 2 if outcome == "same" else 1)
    if is_named and outcome != "same":
        assert continued is ErrorCode.fetch_session_id_not_found
    else:
        assert continued == (first, [])


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH])
def test_an_unknown_id_is_ignored_in_a_full_request(epoch: int) -> None:
    """kafka-go starts like this and fails on an error."""
    answer = SessionCacheWorld().fetch(4711, epoch, partition_request(0), partition_request(1))
    assert not isinstance(answer, ErrorCode)
    assert answer[1] == [0, 1]


def test_a_response_contains_only_changed_partitions() -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin(4)
    found = {
        0: good(data=b"records"),
        1: good(high_watermark=5),
        2: good(diverging=EpochEnd(1, 2)),
    }
    assert cache.fetch(session_id, 1, results=found) == (session_id, [0, 1, 2])
    # Equal to the last response: nothing to report.
    assert cache.fetch(session_id, 2, results={1: good(high_watermark=5)}) == (session_id, [])
    begins_later = FetchResult(error=ErrorCode.none, high_watermark=0, log_start_offset=3)
    assert cache.fetch(session_id, 3, results={2: begins_later, 1: good(5)}) == (session_id, [2])


def test_errors_and_their_end_are_reported() -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin(2)
    failed = {1: FetchResult(error=ErrorCode.not_leader_or_follower)}
    assert cache.fetch(session_id, 1, results=failed) == (session_id, [1])
    assert cache.fetch(session_id, 2, results=failed) == (session_id, [1])
    assert cache.fetch(session_id, 3) == (session_id, [1])
    assert cache.fetch(session_id, 4) == (session_id, [])


def test_partitions_with_returned_records_are_read_last() -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin(3)
    cache.fetch(session_id, 1, results={0: good(data=b"r")})
    context = cache.context(session_id, 2)
    assert isinstance(context, FetchContext)
    # KIP-74: partitions that returned data move to the end, so that a size limit starves none.
    assert [request.partition for request in context.requests] == [1, 2, 0]


def test_a_request_changes_adds_and_forgets_partitions() -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin(2)
    context = cache.context(
        session_id, 1, partition_request(1, 50), partition_request(9), forgotten=[0]
    )
    assert isinstance(context, FetchContext)
    assert {request.partition: request.offset for request in context.requests} == {1: 50, 9: 0}
    assert cache.cache.partitions == 2
    # A partition that is both added and forgotten is forgotten, as in Kafka.
    both = cache.context(session_id, 2, partition_request(3), forgotten=[3])
    assert isinstance(both, FetchContext)
    assert {request.partition for request in both.requests} == {1, 9}


def test_a_session_without_partitions_ends() -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin(1)
    assert cache.fetch(session_id, 1, forgotten=[0]) == (0, [])
    assert cache.fetch(session_id, 2) is ErrorCode.fetch_session_id_not_found
    assert (len(cache.cache), cache.cache.partitions) == (0, 0)


@pytest.mark.parametrize("by_id", [True, False])
def test_ids_and_names_do_not_mix_in_a_session(by_id: bool) -> None:
    cache = SessionCacheWorld()
    answer = cache.fetch(
        0, 0, partition_request(0, topic_id=TOPIC_ID if by_id else None), by_id=by_id
    )
    assert not isinstance(answer, ErrorCode)
    other = cache.fetch(answer[0], 1, by_id=not by_id)
    assert other is ErrorCode.fetch_session_topic_id_error
    assert cache.fetch(answer[0], 1, by_id=by_id) == (answer[0], [])


def test_a_session_keeps_the_name_of_a_deleted_topic() -> None:
    cache = SessionCacheWorld()
    answer = cache.fetch(0, 0, partition_request(0, topic_id=TOPIC_ID), by_id=True)
    assert not isinstance(answer, ErrorCode)
    unresolved = PartitionRequest(topic="", topic_id=TOPIC_ID, partition=0, offset=3, max_bytes=1)
    context = cache.context(answer[0], 1, unresolved, by_id=True)
    assert isinstance(context, FetchContext)
    assert [(request.topic, request.offset) for request in context.requests] == [("t", 3)]


@pytest.mark.parametrize("epoch", [INITIAL_EPOCH, FINAL_EPOCH, 1])
def test_another_client_neither_uses_nor_ends_a_session(epoch: int) -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin(who="me")
    answer = cache.fetch(session_id, epoch, partition_request(0), who="stranger")
    if epoch == 1:
        assert answer is ErrorCode.fetch_session_id_not_found
    assert cache.fetch(session_id, 1) == (session_id, [])


def test_a_late_response_of_a_continued_session_is_an_error() -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin()
    late = cache.context(session_id, 1)
    assert isinstance(late, FetchContext)
    assert cache.fetch(session_id, 2) == (session_id, [])
    assert cache.end(late, {}) is ErrorCode.invalid_fetch_session_epoch


def test_session_epochs_wrap_to_1() -> None:
    cache = SessionCacheWorld()
    session_id = cache.begin()
    (session,) = cache.cache._sessions.values()
    session.epoch = 2**31 - 1
    assert cache.fetch(session_id, 2**31 - 1) == (session_id, [])
    assert cache.fetch(session_id, 1) == (session_id, [])


def filled(*sizes: int, slots: int) -> tuple[SessionCacheWorld, list[int]]:
    """Return a cache of sessions with the given sizes, one client each,
    created one second apart."""
    cache = SessionCacheWorld(slots)
    made = []
    for number, size in enumerate(sizes):
        made.append(cache.begin(size, who=number))
        cache.now_s += 1
    return cache, made


def test_a_young_session_is_not_evicted() -> None:
    cache, made = filled(1, 1, slots=2)
    assert cache.begin(50, who="new") == 0
    assert [cache.fetch(item, 1, who=number) for number, item in enumerate(made)] == [
        (made[0], []),
        (made[1], []),
    ]


def test_an_idle_session_is_evicted() -> None:
    cache, made = filled(9, 9, slots=2)
    cache.now_s = IDLE_S + 0.5
    assert cache.begin(1, who="new") != 0
    assert cache.fetch(made[0], 1, who=0) is ErrorCode.fetch_session_id_not_found
    assert cache.fetch(made[1], 1, who=1) == (made[1], [])


@pytest.mark.parametrize(("size", "has_room"), [(3, False), (4, True)])
def test_an_old_session_makes_room_for_a_larger_one(size: int, has_room: bool) -> None:
    cache, made = filled(5, 3, slots=2)
    cache.now_s = IDLE_S
    # Both sessions are used, so only their size and age decide: the new session must be larger
    # than the smaller one.
    for number, item in enumerate(made):
        cache.fetch(item, 1, who=number)
    cache.now_s = IDLE_S + 10
    assert (cache.begin(size, who="new") != 0) is has_room
    assert cache.fetch(made[0], 2, who=0) == (made[0], [])
    evicted = cache.fetch(made[1], 2, who=1) is ErrorCode.fetch_session_id_not_found
    assert evicted is has_room


def test_no_client_has_more_than_half_of_all_sessions() -> None:
    cache = SessionCacheWorld(slots=4)
    made = [cache.begin(who="greedy") for _ in range(20)]
    assert 0 not in made
    assert len(cache.cache) == 2
    assert cache.begin(who="other") != 0
    # The client's newest sessions survive its older ones.
    assert cache.fetch(made[-1], 1, who="greedy") == (made[-1], [])


def test_partitions_of_all_sessions_are_limited() -> None:
    cache = SessionCacheWorld(partitions_max=10)
    assert cache.begin(6, who="greedy") == 0
    session_id = cache.begin(4)
    assert cache.begin(4, who="other") != 0
    assert cache.begin(4, who="third") == 0
    # The session has no room for three more partitions: it ends, and the client starts a new one.
    more = cache.fetch(session_id, 1, *map(partition_request, range(10, 13)))
    assert more is ErrorCode.invalid_fetch_session_epoch
    assert cache.cache.partitions == 4
    assert cache.fetch(session_id, 2) is ErrorCode.fetch_session_id_not_found


def test_a_cache_without_slots_creates_no_session() -> None:
    assert SessionCacheWorld(slots=0).begin() == 0
