"""Transactions in a given state, for tests of the coordinator's rules."""

from dataclasses import replace

from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.metadata import (
    PREPARED,
    Producer,
    TransactionMetadata,
    TransactionState,
)

PID = 1000
EPOCH = 5
NOW_MS = 1_000_000
TIMEOUT_MS = 60_000
T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
ME = Producer(PID, EPOCH)
BEFORE = Producer(PID, EPOCH - 1)
AFTER = Producer(PID, EPOCH + 1)
OTHER = Producer(PID + 1, EPOCH)


def transaction(state: TransactionState, **changes: object) -> TransactionMetadata:
    """Return a transaction of producer 1000 in epoch 5, with t-0 if it has partitions."""
    has_partitions = state in PREPARED or state is TransactionState.ONGOING
    metadata = TransactionMetadata(
        producer_id=PID,
        previous_producer_id=PID,
        producer_epoch=EPOCH,
        timeout_ms=TIMEOUT_MS,
        state=state,
        partitions=frozenset({T0}) if has_partitions else frozenset(),
        started_ms=-1 if state is TransactionState.EMPTY else NOW_MS - 1000,
        updated_ms=NOW_MS - 1000,
        version=2,
    )
    return replace(metadata, **changes)  # type: ignore[arg-type]
