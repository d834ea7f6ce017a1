"""Common parts of handlers that pass topic changes on to the operator.

The operator answers once the Topic object is written. A client then expects to find the change, at
least on this broker. The handler therefore waits until this broker's metadata has it, as long as
the client allows, and answers REQUEST_TIMED_OUT otherwise, as Kafka does.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tidemark.wire.topics import TopicChange, TopicChangeResult
from tidemark_broker.api.table import Call
from tidemark_broker.replication.metadata import CHANGED, TopicMetadata
from tidemark_broker.topic_changes.forwarder import Requester

K = TypeVar("K", bound=Hashable)

#: Longest wait for the operator's answer, however long the client waits.
_ASKED_MAX_S = 60.0
AUTHORIZATION_FAILED = "Authorization failed."


def requester(call: Call) -> Requester:
    """Return the client's identity for the audit log."""
    return Requester(call.client.principal, call.client.peer)


def error_of(code: int) -> ErrorCode:
    """Return an error code for an answer.

    A code that Kafka's releases lack (KIP-950) is written by its number.
    """
    try:
        return ErrorCode(code)
    except ValueError:
        unknown: Any = code
        return unknown  # type: ignore[no-any-return]


async def forward(
    call: Call, changes: Sequence[TopicChange], *, wait_s: float, validate_only: bool = False
) -> Sequence[TopicChangeResult]:
    """Pass changes on to the operator. Return one result for each."""
    if not changes:
        return ()
    return await call.services.changes.change(
        changes, requester(call), timeout_s=min(wait_s, _ASKED_MAX_S), validate_only=validate_only
    )


async def wait_until_known(
    call: Call, pending: Iterable[K], is_known: Callable[[K], bool], wait_s: float
) -> frozenset[K]:
    """Wait until this broker's metadata contains the changes, at most ``wait_s`` seconds.

    ``pending`` identifies the changed objects. Return those whose change has not arrived.
    """
    left = list(dict.fromkeys(pending))

    def all_known() -> bool:
        # Only the last pending name is evaluated per change, which keeps large requests cheap.
        while left and is_known(left[-1]):
            left.pop()
        return not left  # the rest is evaluated once this one is known

    await call.services.purgatory.wait(
        [CHANGED], all_known, call.wait_s(wait_s), who=call.client.identity
    )
    return frozenset(name for name in left if not is_known(name))


def is_led(topic: TopicMetadata | None, partitions: int, call: Call) -> bool:
    """True if the topic has that number of partitions, each with a leader."""
    # During a growth the metadata may still have the old number of partitions.
    if topic is None or len(topic.partitions) < partitions:
        return False
    replicas = call.services.replicas
    return all(replicas.is_led(topic.topic_id, row) for row in topic.partitions.values())
