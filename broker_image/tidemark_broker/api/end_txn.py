"""EndTxn (26): commit or abort a transaction (KIP-98).

The answer is sent once the decision is committed. Markers are written afterwards, and the next
transaction waits for them. From version 5 each end raises the producer's epoch, and the answer
contains the new identity (KIP-890).
"""

from dataclasses import dataclass
from datetime import timedelta

from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.errors import ErrorCode

from tidemark_broker.api.schema import ZERO
from tidemark_broker.api.table import Api, Call
from tidemark_broker.api.transactional import as_known, refusal
from tidemark_broker.coordinators.errors import CoordinatorError
from tidemark_broker.transactions.core.metadata import EPOCH_BUMP_LEVEL, Producer

#: From this version the end of a transaction raises the producer epoch (KIP-890).
_RAISES_EPOCH_SINCE = 5
#: From this version clients understand PRODUCER_FENCED.
_FENCED_SINCE = 2


@dataclass(slots=True, kw_only=True)
class EndTxnResponse:
    """The producer's identity, -1 with an error."""

    error_code: ErrorCode
    producer_id: int = -1
    producer_epoch: int = -1
    throttle_time: timedelta = ZERO


async def handle(request: EndTxnRequest, call: Call) -> EndTxnResponse:
    """Commit or abort the producer's transaction, and return the producer's new identity.

    Answers once the decision is committed. The coordinator writes the markers afterwards.
    """
    error = refusal(call, request.transactional_id)
    if error is not ErrorCode.none:
        return EndTxnResponse(error_code=error)
    try:
        shard = call.services.transactions.shard_of(request.transactional_id)
        # Only clients of version 5 receive the raised epoch, so only they may have it raised.
        ended = await shard.end(
            request.transactional_id,
            producer=Producer(request.producer_id, request.producer_epoch),
            commit=request.committed,
            version=EPOCH_BUMP_LEVEL if call.version >= _RAISES_EPOCH_SINCE else 0,
        )
    except CoordinatorError as failed:
        return EndTxnResponse(error_code=failed.error_code)
    # An older client would not understand PRODUCER_FENCED (KIP-588).
    if ended.error is not ErrorCode.none or ended.producer is None:
        return EndTxnResponse(error_code=as_known(ended.error, call, since=_FENCED_SINCE))
    return EndTxnResponse(
        error_code=ErrorCode.none,
        producer_id=ended.producer.producer_id,
        producer_epoch=ended.producer.epoch,
    )


API = Api(
    key=26,
    name="EndTxn",
    version_min=0,
    version_max=5,
    request=EndTxnRequest,
    answer=EndTxnResponse,
    handler=handle,
)
