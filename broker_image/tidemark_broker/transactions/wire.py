"""Messages between brokers about transactions, on the replication listener.

Kafka uses its public WriteTxnMarkers and AddPartitionsToTxn, which are served to clients with
Kafka's permissions. Authenticated brokers use internal messages with many transactions each.
"""

from kio.static.constants import EntityType

from tidemark.wire.entity import entity, wire

WRITE_MARKERS = 10020
QUERY_COORDINATOR = 10021

_nested = EntityType.nested


@entity(_nested, WRITE_MARKERS)
class WireMarker:
    """One marker for one partition; see :class:`core.markers.Marker`."""

    topic: str = wire("string")
    partition: int = wire("int32")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    coordinator_epoch: int = wire("int32")
    commit: bool = wire("bool")
    version: int = wire("int8")


@entity(EntityType.request, WRITE_MARKERS)
class WriteMarkersRequest:
    """Markers of one coordinator for partitions that the receiver leads."""

    markers: tuple[WireMarker, ...]


@entity(EntityType.response, WRITE_MARKERS)
class WriteMarkersResponse:
    """Kafka's error codes in the order of the request; 0 means that the marker is committed."""

    errors: tuple[int, ...] = wire("int16")


@entity(_nested, QUERY_COORDINATOR)
class WireInquiry:
    """Query of a leader that received transactional records: are the partitions in the transaction?

    With ``adds`` they are added (KIP-890: producers of ``transaction.version`` 2).
    """

    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    adds: bool = wire("bool")
    topics: tuple[str, ...] = wire("string")
    partitions: tuple[int, ...] = wire("int32")


@entity(EntityType.request, QUERY_COORDINATOR)
class QueryCoordinatorRequest:
    """Queries of a leading broker to a coordinating one.

    ``topics`` and ``partitions`` of a query are parallel.
    """

    inquiries: tuple[WireInquiry, ...]


@entity(_nested, QUERY_COORDINATOR)
class WireVerdict:
    """Kafka's error codes, one for each partition of the query."""

    errors: tuple[int, ...] = wire("int16")


@entity(EntityType.response, QUERY_COORDINATOR)
class QueryCoordinatorResponse:
    """Results in the order of the request."""

    verdicts: tuple[WireVerdict, ...]
