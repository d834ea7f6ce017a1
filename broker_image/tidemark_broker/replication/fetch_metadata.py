"""Ids and epochs of fetch sessions (KIP-227, Kafka's ``FetchMetadata``), for followers and
clients.
"""

#: Session id of a fetch without a session.
NO_SESSION = 0
#: Epoch of a full fetch that requests a session, and of a full fetch that requests none.
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
#: Idle time after which a session may be evicted (Kafka: two minutes).
IDLE_S = 120.0
SESSION_ID_MAX = 2**31 - 1
_EPOCH_MAX = 2**31 - 1


def is_full(epoch: int) -> bool:
    """Return whether a request of that epoch names every partition, whatever its session."""
    return epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def after(epoch: int) -> int:
    """Return the epoch of a session's next request (Kafka's ``FetchMetadata.nextEpoch``)."""
    return 1 if epoch >= _EPOCH_MAX else epoch + 1
