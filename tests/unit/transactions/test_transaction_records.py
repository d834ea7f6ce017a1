"""Records of ``__transaction_state``, byte for byte as Kafka writes them."""

import pytest

from tests.unit.transactions.transaction_worlds import T0, T1, transaction
from tidemark_broker.replication.types import TopicPartition
from tidemark_broker.transactions.core.metadata import (
    STATES_BY_LABEL,
    TransactionMetadata,
    TransactionState,
)
from tidemark_broker.transactions.core.records import (
    BadTransactionRecord,
    key_of,
    read_key,
    read_value,
    value_of,
)

#: Written by Kafka's generated TransactionLogValue, version 1.
KAFKA_VALUE = (
    "0001"  # version
    "00000000000003e8"  # producer id
    "0005"  # epoch
    "0000ea60"  # time-out
    "01"  # Ongoing
    "02"  # one topic
    "0274" "03" "00000000" "00000001" "00"  # t, partitions 0 and 1
    "00000000000f3e58"  # last update
    "00000000000f3e58"  # start
    "02"  # two tagged fields
    "00" "08" "00000000000003e8"  # previous producer id
    "02" "02" "0002"  # client's transaction version
)  # fmt: skip


def test_records_match_kafka() -> None:
    assert key_of("abc") == bytes.fromhex("00000003616263")
    value = value_of(transaction(TransactionState.ONGOING, partitions=frozenset({T1, T0})))
    assert value.hex() == KAFKA_VALUE


@pytest.mark.parametrize("state", TransactionState, ids=lambda state: state.name)
def test_written_records_are_read(state: TransactionState) -> None:
    metadata = transaction(
        state,
        partitions=frozenset()
        if state is TransactionState.EMPTY
        else frozenset({T0, T1, TopicPartition("ä", 7)}),
        previous_producer_id=9,
        next_producer_id=11,
    )
    assert read_value(value_of(metadata)) == metadata
    assert read_key(key_of("ä-1")) == "ä-1"


def test_an_empty_transaction_has_null_for_its_partitions() -> None:
    """Byte 17: the compact array's length, 0 for null."""
    assert value_of(transaction(TransactionState.EMPTY))[17] == 0
    assert value_of(transaction(TransactionState.COMPLETE_COMMIT))[17] == 1


def test_unknown_keys_are_skipped_and_unknown_values_rejected() -> None:
    assert read_key(b"\0\x01whatever") is None
    with pytest.raises(BadTransactionRecord, match="version 2"):
        read_value(b"\0\x02")


@pytest.mark.parametrize("key", [b"", b"\0", b"\0\0\0\x04abc", b"\0\0\0\x01\xff"])
def test_damaged_keys(key: bytes) -> None:
    with pytest.raises(BadTransactionRecord):
        read_key(key)


def test_damaged_values() -> None:
    complete = bytes.fromhex(KAFKA_VALUE)
    for length in range(len(complete)):
        with pytest.raises(BadTransactionRecord):
            read_value(complete[:length])
    with pytest.raises(BadTransactionRecord):
        read_value(complete[:16] + b"\x63" + complete[17:])  # 99 is not a state.


def test_state_names_match_kafka() -> None:
    assert sorted(STATES_BY_LABEL) == [
        "CompleteAbort", "CompleteCommit", "Dead", "Empty", "Ongoing", "PrepareAbort",
        "PrepareCommit", "PrepareEpochFence",
    ]  # fmt: skip
    assert isinstance(transaction(TransactionState.EMPTY), TransactionMetadata)
