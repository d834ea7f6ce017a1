"""WriteTxnMarkers (27): end transactions in partitions that this broker leads.

Brokers use an internal Api for this. Administrators use this one to end a hanging transaction
(KIP-664).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kio.schema.errors import ErrorCode
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WriteTxnMarkersRequest

from tidemark_broker.api.table import Api, Call
from tidemark_broker.security.acls import Operation, ResourceType
from tidemark_broker.transactions.wire import WireMarker

#: Kafka's ``request.timeout.ms``: longest wait for markers to be committed.
_WAIT_S = 30.0


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerPartitionResult:
    partition_index: int
    error_code: ErrorCode


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerTopicResult:
    name: str
    partitions: tuple[WritableTxnMarkerPartitionResult, ...]


@dataclass(slots=True, kw_only=True)
class WritableTxnMarkerResult:
    producer_id: int
    topics: tuple[WritableTxnMarkerTopicResult, ...]


@dataclass(slots=True, kw_only=True)
class WriteTxnMarkersResponse:
    """Results in the order of the request."""

    markers: tuple[WritableTxnMarkerResult, ...]


async def handle(request: WriteTxnMarkersRequest, call: Call) -> WriteTxnMarkersResponse:
    """Write transaction markers to partitions that this broker leads, and wait for their commit."""
    flattened = await call.time_slice.collect(_flattened(request))
    # As in Kafka, ALTER suffices, so that administrators need no broker's permission.
    may = call.client.may(Operation.ALTER, ResourceType.CLUSTER) or call.client.may(
        Operation.CLUSTER_ACTION, ResourceType.CLUSTER
    )
    errors: Sequence[ErrorCode] = [ErrorCode.cluster_authorization_failed] * len(flattened)
    if may:
        errors = await call.services.marker_writer.write(flattened, wait_s=call.wait_s(_WAIT_S))
    # Errors are in the order of the flattened markers.
    remaining = iter(errors)
    results = await call.time_slice.collect(
        _result(marker, remaining) for marker in request.markers
    )
    return WriteTxnMarkersResponse(markers=tuple(results))


def _flattened(request: WriteTxnMarkersRequest) -> Iterator[WireMarker]:
    for marker in request.markers:
        for topic in marker.topics:
            for partition in topic.partition_indexes:
                yield WireMarker(
                    topic=topic.name,
                    partition=partition,
                    producer_id=marker.producer_id,
                    producer_epoch=marker.producer_epoch,
                    coordinator_epoch=marker.coordinator_epoch,
                    commit=marker.transaction_result,
                    version=marker.transaction_version,
                )


def _result(marker: WritableTxnMarker, remaining: Iterator[ErrorCode]) -> WritableTxnMarkerResult:
    """Return the results of one marker, grouped by topic as in the request.

    ``remaining`` yields the error codes of all markers in the order in which they were written,
    which is that of the request.
    """
    # Each partition takes the next error code, so the loops must be in the order of the request.
    return WritableTxnMarkerResult(
        producer_id=marker.producer_id,
        topics=tuple(
            WritableTxnMarkerTopicResult(
                name=topic.name,
                partitions=tuple(
                    WritableTxnMarkerPartitionResult(
                        partition_index=partition, error_code=next(remaining)
                    )
                    for partition in topic.partition_indexes
                ),
            )
            for topic in marker.topics
        ),
    )


API = Api(
    key=27,
    name="WriteTxnMarkers",
    version_min=1,
    version_max=2,
    request=WriteTxnMarkersRequest,
    answer=WriteTxnMarkersResponse,
    handler=handle,
)
