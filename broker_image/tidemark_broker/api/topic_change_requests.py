"""What the handlers have in common that pass a client's changes of topics on to the operator.

An answer of the operator means that the Topic object is written. A client that is told so expects
to find what it asked for, at least on this broker: so the handler waits until the metadata here
says so, as long as the client allows, and answers REQUEST_TIMED_OUT otherwise, as Kafka does.
"""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, TypeVar

from kio.schema.errors import ErrorCode

from tidemark.wire.topics import TopicChange, TopicChangeResult
from tidemark_broker.api.table import Call
from tidemark_broker.replication.metadata import CHANGED, TopicMetadata
from tidemark_broker.topic_changes.forwarder import Asker

K = TypeVar("K", bound=Hashable)

#: However long a client waits, the operator is not given more for its answer.
_ASKED_MAX_S = 60.0
AUTHORIZATION_FAILED = "Authorization failed."


def asker(call: Call) -> Asker:
    """Who asks, for the audit."""
    return Asker(call.client.principal, call.client.peer)


def error_of(code: int) -> ErrorCode:
    """An error code as answers carry it. One that Kafka's releases do not have (KIP-950's) is
    written by its number all the same."""
    try:
        return ErrorCode(code)
    except ValueError:
        unknown: Any = SimpleNamespace(value=code)
        return unknown  # type: ignore[no-any-return]


async def pass_on(
    call: Call, changes: Sequence[TopicChange], *, wait_s: float, validate_only: bool = False
) -> Sequence[TopicChangeResult]:
    """One result for each change."""
    if not changes:
        return ()
    return await call.services.changes.change(
        changes, asker(call), timeout_s=min(wait_s, _ASKED_MAX_S), validate_only=validate_only
    )


async def until_known(
    call: Call, pending: Iterable[K], is_known: Callable[[K], bool], wait_s: float
) -> frozenset[K]:
    """Wait until the metadata of this broker has followed; the topics of which it has not."""
    left = list(dict.fromkeys(pending))

    def all_known() -> bool:
        while left and is_known(left[-1]):
            left.pop()
        return not left  # the rest is looked at when that one is there

    await call.services.purgatory.wait(
        [CHANGED], all_known, call.wait_s(wait_s), who=call.client.who
    )
    return frozenset(name for name in left if not is_known(name))


def is_led(topic: TopicMetadata | None, partitions: int, call: Call) -> bool:
    """It has so many partitions, and each of them a leader."""
    if topic is None or len(topic.partitions) < partitions:
        return False
    replicas = call.services.replicas
    return all(replicas.is_led(topic.topic_id, row) for row in topic.partitions.values())


def with_each(
    names: Sequence[str], results: Sequence[TopicChangeResult]
) -> Mapping[str, TopicChangeResult]:
    """By name."""
    return dict(zip(names, results, strict=True))
