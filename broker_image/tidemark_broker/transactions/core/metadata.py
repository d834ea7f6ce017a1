"""State of one transactional id: Kafka's ``TransactionMetadata``, as a value.

A transaction goes Empty -> Ongoing -> PrepareCommit or PrepareAbort -> CompleteCommit or
CompleteAbort -> Ongoing. The Prepare state is the decision: once its record is committed the
outcome is final for every coordinator, and every partition must get its marker. Complete means that
all have it.

With ``transaction.version`` 2 (KIP-890) each end raises the producer's epoch, so that a marker
fences late records of its transaction. An epoch above 32,766 is never given to a producer: such an
end assigns a new producer id and epoch 0.
"""

import enum
from dataclasses import dataclass, replace

from tidemark_broker.replication.types import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
#: Last epoch of a producer id; the next end changes the id.
LAST_EPOCH = 2**15 - 2
#: ``transaction.version`` from which each end raises the epoch.
EPOCH_BUMP_LEVEL = 2


class TransactionState(enum.IntEnum):
    """States by the numbers of ``TransactionLogValue``.

    The last two are Kafka's in-memory states. ListTransactions may filter by them, and no
    transaction here is ever in them.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """Kafka's name, such as ``PrepareCommit``."""
        return self.name.title().replace("_", "")


#: Decided, with markers still missing.
PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
#: No transaction in progress: the next one may start, and the id may expire.
AT_REST = frozenset(
    {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
)
STATES_BY_LABEL = {state.label: state for state in TransactionState}


@dataclass(frozen=True, slots=True)
class Producer:
    """A producer id and its epoch."""

    producer_id: int
    epoch: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionMetadata:
    """State of an id. Times in ms since the epoch; ``started_ms`` is -1 before the first
    transaction.

    - ``previous_producer_id``: id before the last change of the id, or the same
    - ``next_producer_id``: id after completion, -1 for none
    - ``last_epoch``: epoch before the last raise, which a producer may repeat (KIP-360), -1 for
      none. As in Kafka it is not in the log, so a repetition fails after a change of coordinators.
    - ``version``: the ``transaction.version`` of the last change
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    last_epoch: int = NO_EPOCH
    partitions: frozenset[TopicPartition] = frozenset()
    started_ms: int = -1
    version: int = 0

    @property
    def epoch_is_exhausted(self) -> bool:
        """True if the next raise must change the producer id."""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def last_end_raised_epoch(self) -> bool:
        """True if the last end raised the epoch.

        Only then may EndTxn with the previous epoch be a repetition.
        """
        return self.version >= EPOCH_BUMP_LEVEL

    def has_timed_out(self, now_ms: int) -> bool:
        """True if the transaction is open for longer than its timeout."""
        # A prepared transaction cannot time out: its outcome is decided.
        is_open = self.state is TransactionState.ONGOING
        return is_open and self.started_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """True if the id has been unused for so long that it may be deleted."""
        return self.state in AT_REST and self.updated_ms <= now_ms - expiration_ms

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """Return the Complete state that follows a Prepare state when all markers are written."""
        # The producer gets its new id only here: markers must carry the id that wrote the records.
        rotates = self.last_end_raised_epoch and self.next_producer_id != NO_PRODUCER_ID
        is_commit = self.state is TransactionState.PREPARE_COMMIT
        return replace(
            self,
            state=TransactionState.COMPLETE_COMMIT
            if is_commit
            else TransactionState.COMPLETE_ABORT,
            producer_id=self.next_producer_id if rotates else self.producer_id,
            producer_epoch=0 if rotates else self.producer_epoch,
            previous_producer_id=self.producer_id,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
            updated_ms=now_ms,
        )
