"""ListTransactions (66, KIP-664): transactional ids of this coordinator that the client may
describe.

Filters: state, producer id, age (KIP-994) and a regular expression for ids (KIP-1152).
"""

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

#: Approximate size of an id in an answer.
_ID_BYTES = 200


@dataclass(slots=True, kw_only=True)
class ListedTransaction:
    transactional_id: str
    producer_id: int
    transaction_state: str


@dataclass(slots=True, kw_only=True)
class ListTransactionsResponse:
    """The transactions. ``unknown_state_filters`` are names in the request that are not states."""

    error_code: ErrorCode
    unknown_state_filters: tuple[str, ...] = ()
    transaction_states: tuple[ListedTransaction, ...] = ()
    throttle_time: timedelta = ZERO


async def handle(request: ListTransactionsRequest, call: Call) -> ListTransactionsResponse:
    """List the transactions that this broker coordinates and that match the filters."""
    # Kafka answers LOADING rather than an incomplete list, and clients retry.
    if call.services.transactions.is_loading:
        return ListTransactionsResponse(error_code=ErrorCode.coordinator_load_in_progress)
    # Reserved for all transactions, because the number of matches is not known yet.
    if not call.has_room(call.services.transactions.count * _ID_BYTES):
        return ListTransactionsResponse(error_code=ErrorCode.coordinator_load_in_progress)
    try:
        matches = await _matcher(request.transactional_id_pattern)
    except BadPattern:
        return ListTransactionsResponse(error_code=ErrorCode.invalid_regular_expression)
    found = await call.time_slice.collect(_looked_at(request, call, matches))
    return ListTransactionsResponse(
        error_code=ErrorCode.none,
        unknown_state_filters=tuple(
            name for name in request.state_filters if name not in STATES_BY_LABEL
        ),
        transaction_states=tuple(transaction for transaction in found if transaction is not None),
    )


async def _matcher(pattern: str | None) -> Callable[[str], bool]:
    """Return the filter of ids. As in Kafka, no pattern and an empty one match all, others whole
    ids.

    Raises :class:`BadPattern`.
    """
    # Compiling an expression from a client may take long, so it runs in a thread.
    return await asyncio.to_thread(compiled, pattern) if pattern else lambda _: True


def _looked_at(
    request: ListTransactionsRequest, call: Call, matches: Callable[[str], bool]
) -> Iterator[ListedTransaction | None]:
    """Yield the transactions that match the filters and may be described, None for others.

    The caller yields the event loop between items. ``matches`` is the filter of transactional ids.
    """
    transactions, now_ms = call.services.transactions, call.services.transactions.wall_ms()
    states = {STATES_BY_LABEL.get(name) for name in request.state_filters}
    producers = set(request.producer_id_filters)

    def is_match(known: TransactionMetadata) -> bool:
        """Return whether a transaction matches the filters of state, producer id and age."""
        if (states and known.state not in states) or (
            producers and known.producer_id not in producers
        ):
            return False
        # A negative filter means any age (KIP-994).
        open_ms = now_ms - known.started_ms
        return request.duration_filter < 0 or open_ms > request.duration_filter

    for shard in transactions.shards():
        for transactional_id, known in shard.all():
            # The cheap filters run first, since an ACL check for each id is the slowest part.
            may = (
                is_match(known)
                and matches(transactional_id)
                and call.client.may(
                    Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, transactional_id
                )
            )
            yield _state(transactional_id, known) if may else None


def _state(transactional_id: str, known: TransactionMetadata) -> ListedTransaction:
    return ListedTransaction(
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
