"""What brokers say to each other about transactions, on the listener for brokers.

Kafka uses its public WriteTxnMarkers and AddPartitionsToTxn for this; those are served to clients
with the permissions that Kafka asks for. Between brokers, who have proven which ones they are, the
same travels in messages of our own, many transactions in each.
"""

from kio.static.constants import EntityType

from tidemark.wire.entity import entity, wire

WRITE_MARKERS = 10020
ASK_COORDINATOR = 10021

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
    """Of one coordinating broker to the leader of all these partitions."""

    markers: tuple[WireMarker, ...]


@entity(EntityType.response, WRITE_MARKERS)
class WriteMarkersResponse:
    """Kafka's error codes, in the order of the request; 0: the marker is committed."""

    errors: tuple[int, ...] = wire("int16")


@entity(_nested, ASK_COORDINATOR)
class WireInquiry:
    """A leader that was sent records of a transaction asks whether these partitions are in it, or,
    with ``adds`` (KIP-890: producers of ``transaction.version`` 2), adds them."""

    transactional_id: str = wire("string")
    producer_id: int = wire("int64")
    producer_epoch: int = wire("int16")
    adds: bool = wire("bool")
    topics: tuple[str, ...] = wire("string")
    partitions: tuple[int, ...] = wire("int32")


@entity(EntityType.request, ASK_COORDINATOR)
class AskCoordinatorRequest:
    """Of one leading broker to a coordinating one. ``topics`` and ``partitions`` of an inquiry go
    together, one to one."""

    inquiries: tuple[WireInquiry, ...]


@entity(_nested, ASK_COORDINATOR)
class WireVerdict:
    """Kafka's error codes, one for each partition of the inquiry."""

    errors: tuple[int, ...] = wire("int16")


@entity(EntityType.response, ASK_COORDINATOR)
class AskCoordinatorResponse:
    """In the order of the request."""

    verdicts: tuple[WireVerdict, ...]
