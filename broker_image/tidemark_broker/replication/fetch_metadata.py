"""What numbers the requests of a fetch session (KIP-227, Kafka's ``FetchMetadata``), those of
followers and of clients alike."""

#: No session.
NO_SESSION = 0
#: The epoch of a fetch that names everything and asks for a session, and of one that names
#: everything and wants none.
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
#: A session that was not used for as long makes room for another (Kafka: two minutes).
IDLE_S = 120.0
SESSION_ID_MAX = 2**31 - 1
_EPOCH_MAX = 2**31 - 1


def is_full(epoch: int) -> bool:
    """Does such a request name everything, whatever session it is of?"""
    return epoch in (INITIAL_EPOCH, FINAL_EPOCH)


def after(epoch: int) -> int:
    """The epoch of a session's next request (Kafka's ``FetchMetadata.nextEpoch``)."""
    return 1 if epoch >= _EPOCH_MAX else epoch + 1
