"""InitProducerId: the producers that get an id, and the errors of all others."""

import asyncio
from datetime import timedelta
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from tests.answers import room
from tests.services import services
from tidemark.wire.users import (
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    UserState,
    UserStatesRequest,
)
from tidemark_broker.api.client import Client
from tidemark_broker.api.table import Call
from tidemark_broker.api.transactions import producer_transactions
from tidemark_broker.api.transactions.producer_transactions import InitProducerIdResponse
from tidemark_broker.producer_ids import ProducerIds
from tidemark_broker.replication.metadata import MetadataCache
from tidemark_broker.security.user_store import UserStore
from tidemark_broker.transactions.core.decisions import Decision
from tidemark_broker.transactions.core.metadata import Producer


async def init(
    ids: ProducerIds,
    *,
    version: int = 6,
    users: UserStore | None = None,
    coordinator: Any = None,
    transactional_id: str | None = None,
    **fields: Any,
) -> InitProducerIdResponse:
    shared = services(
        MetadataCache("c"),
        users=users or UserStore(),
        producer_ids=ids,
        transactions=coordinator,
    )
    client = Client("10.0.0.1:1", "PLAINTEXT", users, principal="User:ann")
    # The timeout is Kafka's default for transactional producers.
    request = producer_transactions.INIT_PRODUCER_ID.request(
        transactional_id=cast("Any", transactional_id),
        transaction_timeout=cast("Any", timedelta(seconds=60)),
        **fields,
    )
    return await producer_transactions.init_producer_id(
        request, Call(shared, version, client, room())
    )


async def test_ids_continue_across_blocks_and_the_next_block_is_requested_in_time() -> None:
    ids = ProducerIds()
    # Without any block the first request waits for the operator's answer.
    waiting = asyncio.create_task(init(ids))
    await ids.block_needed.wait()
    await ids.add(5_000, 1_000)
    given = [(await waiting).producer_id]
    while not ids.block_needed.is_set():
        given.append((await init(ids)).producer_id)
    # The next block is requested when 90 % of this one are used.
    assert given == list(range(5_000, 5_901))
    await ids.add(9_000, 1_000)
    given = [(await init(ids)).producer_id for _ in range(100)]
    assert given == [*range(5_901, 6_000), 9_000]
    assert not ids.block_needed.is_set()


async def test_a_long_wait_ends_with_a_retriable_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(producer_transactions, "_WAIT_S", 0.01)
    answer = await init(ProducerIds())
    assert answer.error_code is ErrorCode.coordinator_load_in_progress
    assert (answer.producer_id, answer.producer_epoch) == (-1, -1)


@pytest.mark.parametrize("fields", [{"producer_id": 4}, {"producer_epoch": 4}], ids=str)
async def test_an_incomplete_producer_identity_is_rejected(fields: dict[str, int]) -> None:
    assert (await init(ProducerIds(), **fields)).error_code is ErrorCode.invalid_request


async def test_an_empty_transactional_id_is_rejected() -> None:
    answer = await init(ProducerIds(), transactional_id="")
    assert answer.error_code is ErrorCode.invalid_request


class FencingCoordinator:
    """Coordinator, its partitions, and the state of the only one."""

    @property
    def coordinators(self) -> "FencingCoordinator":
        return self

    def shard_of(self, transactional_id: str) -> "FencingCoordinator":
        assert transactional_id == "t"
        return self

    async def init_producer_id(self, transactional_id: str, **request: Any) -> Decision:
        assert request == {"expected": Producer(4, 5), "timeout_ms": 60_000}
        return Decision(error=ErrorCode.producer_fenced)


@pytest.mark.parametrize(
    ("version", "error"),
    [(3, ErrorCode.invalid_producer_epoch), (4, ErrorCode.producer_fenced)],
    ids=["3", "4"],
)
async def test_an_old_client_receives_the_error_that_it_knows(
    version: int, error: ErrorCode
) -> None:
    answer = await init(
        ProducerIds(), version=version, coordinator=FencingCoordinator(), transactional_id="t",
        producer_id=4, producer_epoch=5,
    )  # fmt: skip
    assert answer.error_code is error


def acl(
    operation: Operation,
    kind: ResourceType,
    name: str,
    permission: Permission = Permission.ALLOW,
    pattern: PatternType = PatternType.LITERAL,
) -> Acl:
    return Acl(
        resource_type=int(kind), resource_name=name, pattern_type=int(pattern), host="*",
        operation=int(operation), permission=int(permission),
    )  # fmt: skip


WRITES = acl(Operation.WRITE, ResourceType.TOPIC, "t-1")
PREFIXED = acl(Operation.WRITE, ResourceType.TOPIC, "t-", pattern=PatternType.PREFIXED)


def denied(name: str, pattern: PatternType = PatternType.LITERAL) -> Acl:
    return acl(Operation.WRITE, ResourceType.TOPIC, name, Permission.DENY, pattern)


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        pytest.param([], False, id="nothing"),
        pytest.param(
            [acl(Operation.IDEMPOTENT_WRITE, ResourceType.CLUSTER, "kafka-cluster")], True, id="id"
        ),
        pytest.param([WRITES], True, id="a topic"),
        pytest.param([acl(Operation.READ, ResourceType.TOPIC, "t-1")], False, id="reads only"),
        pytest.param([WRITES, denied("t-1")], False, id="a topic that is denied"),
        pytest.param([WRITES, denied("t-2")], True, id="another is denied"),
        pytest.param([WRITES, denied("t", PatternType.PREFIXED)], False, id="a denied prefix"),
        pytest.param([PREFIXED, denied("t-1")], True, id="one of a prefix is denied"),
        pytest.param([PREFIXED, denied("t", PatternType.PREFIXED)], False, id="a wider prefix"),
        pytest.param([PREFIXED, denied("*")], False, id="all are denied"),
    ],
)
async def test_write_on_any_topic_allows_idempotent_writes(acls: list[Acl], allowed: bool) -> None:
    users, ids = UserStore(), ProducerIds()
    # KIP-679: IDEMPOTENT_WRITE on the cluster, or WRITE on at least one topic. The topic may be
    # any, so the broker compares patterns.
    ann = UserState(name="ann", scram=(), acls=tuple(acls))
    users.apply(
        UserStatesRequest(
            controller_epoch=1, authorize=True, super_users=(), users=(ann,), quotas=()
        )
    )
    await ids.add(0, 1_000)
    answer = await init(ids, users=users)
    expected = ErrorCode.none if allowed else ErrorCode.cluster_authorization_failed
    assert answer.error_code is expected
