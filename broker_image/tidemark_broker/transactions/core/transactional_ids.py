"""Transactional ids of one partition of ``__transaction_state``, while its leader coordinates.

A change applies to this table once it is in the leader's log, and is never taken back: either it is
committed, or the leader resigns and the table is dropped. Until it is committed the id answers
CONCURRENT_TRANSACTIONS, and readers (DescribeTransactions, verification) see the committed state
before it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark_broker.transactions.core.decisions import Decision
from tidemark_broker.transactions.core.metadata import TransactionMetadata
from tidemark_broker.transactions.core.records import read_key, read_value

#: Memory of an id and of a partition, without the bytes of the id: measured, rounded up.
_ID_BYTES = 600
_PARTITION_BYTES = 100


@dataclass(slots=True)
class _TransactionEntry:
    """Committed and appended state, which differ while a change is in progress.

    None is a tombstone, or nothing yet.
    """

    committed: TransactionMetadata | None
    appended: TransactionMetadata | None

    @property
    def is_changing(self) -> bool:
        return self.appended is not self.committed


class Transactions:
    """Table by transactional id. ``weight_bytes`` is the approximate memory."""

    def __init__(self) -> None:
        self._entries: dict[str, _TransactionEntry] = {}
        self.weight_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    # ------------------------------------------------------------ lookup

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        """Return the committed state, None for an unknown id."""
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.committed

    def is_changing(self, transactional_id: str) -> bool:
        """Return whether a change is appended and not committed."""
        entry = self._entries.get(transactional_id)
        return entry is not None and entry.is_changing

    def all(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Yield each id with its committed state.

        Iterates over a copy, since the table may change meanwhile.
        """
        for transactional_id in tuple(self._entries):
            metadata = self.get(transactional_id)
            if metadata is not None:
                yield transactional_id, metadata

    def ids(self) -> Iterator[str]:
        """All ids, including those with uncommitted changes."""
        return iter(self._entries)

    # ------------------------------------------------------------ loading

    def replay(self, key: bytes, value: bytes | None) -> None:
        """Apply a record of the log. Raises ``BadTransactionRecord``."""
        transactional_id = read_key(key)
        if transactional_id is None:
            return
        metadata = None if value is None else read_value(value)
        self._set(transactional_id, _TransactionEntry(metadata, metadata))

    # ------------------------------------------------------------ changes

    def decide(
        self, transactional_id: str, rule: Callable[[TransactionMetadata | None], Decision]
    ) -> Decision:
        """Return the decision of a ``rule`` (of :mod:`decisions`) on the id."""
        entry = self._entries.get(transactional_id)
        if entry is None:
            return rule(None)
        # One change at a time; the client retries after the commit.
        if entry.is_changing:
            return Decision(error=ErrorCode.concurrent_transactions)
        return rule(entry.committed)

    def appended(self, transactional_id: str, change: TransactionMetadata | None) -> None:
        """Apply a change that is in the leader's log (None: a tombstone)."""
        before = self.get(transactional_id)
        assert not self.is_changing(transactional_id)
        self._set(transactional_id, _TransactionEntry(before, change))

    def committed(self, transactional_id: str) -> TransactionMetadata | None:
        """Mark the last change as committed. Return the resulting state."""
        # From now on readers see the new state.
        appended = self._entries[transactional_id].appended
        self._set(transactional_id, _TransactionEntry(appended, appended))
        return appended

    # ------------------------------------------------------------ expiry

    def has_expired(self, transactional_id: str, now_ms: int, expiration_ms: int) -> bool:
        """Return whether the id may be deleted (a tombstone)."""
        metadata = self.get(transactional_id)
        if metadata is None or self.is_changing(transactional_id):
            return False
        return metadata.has_expired(now_ms, expiration_ms)

    # ------------------------------------------------------------ internal

    def _set(self, transactional_id: str, entry: _TransactionEntry) -> None:
        before = self._entries.pop(transactional_id, None)
        if before is not None:
            self.weight_bytes -= _weight(transactional_id, before)
        # A committed tombstone leaves nothing.
        if entry.committed is None and entry.appended is None:
            return
        self._entries[transactional_id] = entry
        self.weight_bytes += _weight(transactional_id, entry)


def _weight(transactional_id: str, entry: _TransactionEntry) -> int:
    partitions = sum(
        len(state.partitions)
        # Both states are often the same object, which counts once.
        for state in {id(state): state for state in (entry.committed, entry.appended)}.values()
        if state is not None
    )
    return _ID_BYTES + len(transactional_id) + _PARTITION_BYTES * partitions
