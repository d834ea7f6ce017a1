"""ListTransactions (66, KIP-664): the transactional ids that this broker coordinates, as far as the
client may describe them; by state, producer id, how long they are open (KIP-994) and an expression
for the ids (KIP-1152)."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.list_transactions.v2.request import ListTransactionsRequest

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.groups.core.topic_patterns import BadPattern, compiled
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions.core.metadata import STATES_BY_LABEL, TransactionMetadata

#: What an id weighs in an answer, about.
_ID_BYTES = 200


@dataclass(slots=True, kw_only=True)
class TransactionState:
    """One transactional id."""

    transactional_id: str
    producer_id: int
    transaction_state: str


@dataclass(slots=True, kw_only=True)
class ListTransactionsResponse:
    """``unknown_state_filters``: names in the request that are no states."""

    error_code: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[TransactionState, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: ListTransactionsRequest, call: Call) -> ListTransactionsResponse:
    """Go through all."""
    if call.services.transactions.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.coordinator_load_in_progress)
    if not call.has_room(call.services.transactions.count * _ID_BYTES):
        return ListTransactionsResponse(error_code=ErrorCode.coordinator_load_in_progress)
    try:
        matches = await _matcher(request.transactional_id_pattern)
    except BadPattern:
        return ListTransactionsResponse(error_code=ErrorCode.invalid_regular_expression)
    found = await call.turns.all_of(_looked_at(request, call, matches))
    return ListTransactionsResponse(
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(
            name for name in request.state_filters if name not in STATES_BY_LABEL
        ),
        transaction_states=tuple(each for each in found if each is not None),
    )


async def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Which ids it stands for: as in Kafka none and an empty one for all, others for whole ids.
    Raises :class:`BadPattern`."""
    return await asyncio.to_thread(compiled, pattern) if pattern else lambda _: True


def _looked_at(
    request: ListTransactionsRequest, call: Call, matches: Callable[[str], bool]
) -> Iterator[TransactionState | None]:
    """None for those that are not asked for: they take time as well."""
    transactions, now_ms = call.services.transactions, call.services.transactions.wall_ms()
    states = {STATES_BY_LABEL.get(name) for name in request.state_filters}
    producers = set(request.producer_id_filters)

    def is_wanted(known: TransactionMetadata) -> bool:
        if (states and known.state not in states) or (
            producers and known.producer_id not in producers
        ):
            return False
        open_ms = now_ms - known.started_ms
        return request.duration_filter < 0 or open_ms > request.duration_filter

    for shard in transactions.shards():
        for transactional_id, known in shard.all():
            may = (
                is_wanted(known)
                and matches(transactional_id)
                and call.client.may(
                    Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
                )
            )
            yield _state(transactional_id, known) if may else None


def _state(transactional_id: str, known: TransactionMetadata) -> TransactionState:
    return TransactionState(
        transactional_id=transactional_id,
        producer_id=known.producer_id,
        transaction_state=known.state.label,
    )


API = Api(
    key=66,
    name="ListTransactions",
    version_min=0,
    version_max=2,
    open_ended=True,
    request=ListTransactionsRequest,
    answer=ListTransactionsResponse,
    handler=handle,
)
