"""What is known of one transactional id: Kafka's ``TransactionMetadata``, as a value.

A transaction goes Empty -> Ongoing -> PrepareCommit or PrepareAbort -> CompleteCommit or
CompleteAbort -> Ongoing again. The Prepare state is the decision: once that record is committed the
outcome stands, whoever coordinates, and every partition is to get its marker; Complete says that
all have it.

With ``transaction.version`` 2 (KIP-890) each end raises the producer's epoch, so that a marker
fences whatever of its transaction comes late. An epoch above 32,766 is never shown to a producer:
the end that would do so gives it another producer id and epoch 0.
"""

import enum
from dataclasses import dataclass, replace

from tidemark_broker.replication.types import TopicPartition

NO_PRODUCER_ID = -1
NO_EPOCH = -1
#: No end can raise it any more, so the next one changes the producer id.
LAST_EPOCH = 2**15 - 2
#: Epochs are raised at each end from this ``transaction.version`` on.
EPOCH_BUMP_LEVEL = 2


class TransactionState(enum.IntEnum):
    """By the numbers of ``TransactionLogValue``. The last two are Kafka's in-memory states: they
    are names that ListTransactions may filter by, and no transaction here is ever in them."""

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
        """Kafka's name: ``PrepareCommit``."""
        return self.name.title().replace("_", "")


_COMPLETE_COMMIT = TransactionState.COMPLETE_COMMIT
#: Decided, and not every partition has its marker.
PREPARED = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
#: Nothing is under way: the next transaction may begin, and the id may expire.
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
    """Times in milliseconds since the epoch; ``started_ms`` is -1 before the first transaction.

    ``previous_producer_id``: whose the last change of id took over from, or the same;
    ``next_producer_id``: the one that completion changes to, -1 for none. ``last_epoch`` is the one
    before the last raise that a producer may ask to have repeated (KIP-360), -1 for none; it is not
    in the log, so such a repetition does not work over a change of coordinators, as in Kafka.
    ``version``: the ``transaction.version`` by which the last change was asked for.
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
        """Must the next raise change the producer id?"""
        return self.producer_epoch >= LAST_EPOCH

    @property
    def last_end_raised_epoch(self) -> bool:
        """Did the end that led to this state raise the epoch? Only then an EndTxn with the epoch
        before is that end, repeated."""
        return self.version >= EPOCH_BUMP_LEVEL

    def has_timed_out(self, now_ms: int) -> bool:
        """Has it been open for longer than its producer allowed?"""
        is_open = self.state is TransactionState.ONGOING
        return is_open and self.started_ms + self.timeout_ms < now_ms

    def has_expired(self, now_ms: int, expiration_ms: int) -> bool:
        """Has nobody used the id for so long that it may be forgotten?"""
        return self.state in AT_REST and self.updated_ms <= now_ms - expiration_ms

    def completed(self, now_ms: int) -> "TransactionMetadata":
        """After a Prepare state, once every partition has its marker."""
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
