"""What the members of a consumer group subscribe to, read from what they tell each other.

Assignors are the clients' business; the coordinator reads the topics only (Kafka's
ConsumerProtocol), so that offsets of a topic that is still consumed are not deleted.
"""

import struct

from kio.schema.consumer_protocol_subscription.v0.data import ConsumerProtocolSubscription
from kio.serial.errors import SerialError

from tidemark.wire.framing import FrameError, reader_of

_VERSION_BYTES = 2


def subscribed_topics(metadata: bytes) -> tuple[str, ...]:
    """The topics of one member; later versions only have more behind them. Raises
    :class:`FrameError`."""
    if len(metadata) < _VERSION_BYTES:
        raise FrameError("a subscription without a version")
    try:
        value, _ = reader_of(ConsumerProtocolSubscription)(metadata, _VERSION_BYTES)
    except (SerialError, ValueError, TypeError, LookupError, OverflowError, struct.error) as error:
        raise FrameError(f"a subscription that cannot be read: {error}") from error
    return tuple(value.topics)
