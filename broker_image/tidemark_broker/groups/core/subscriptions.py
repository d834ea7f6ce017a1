"""What the members of a consumer group subscribe to, read from what they tell each other.

Assignors are the clients' business; the coordinator reads the topics only (Kafka's
ConsumerProtocol), so that offsets of a topic that is still consumed are not deleted.
"""

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription

from tidemark.wire.bounds import STRING_BYTES_MAX, Bounds
from tidemark.wire.framing import FrameError, decode

_VERSION_BYTES = 2


def subscribed_topics(metadata: bytes, most: int) -> tuple[str, ...]:
    """The topics of one member; later versions only have more behind them. Raises
    :class:`FrameError`, for more than ``most`` as well: members write what they like."""
    if len(metadata) < _VERSION_BYTES:
        raise FrameError("a subscription without a version")
    bounds = Bounds(elements=most, string_bytes=STRING_BYTES_MAX)
    value = decode(ConsumerProtocolSubscription, metadata, _VERSION_BYTES, bounds)
    return tuple(value.topics)
