"""The transactional ids of one partition of ``__transaction_state``, while its leader coordinates.

A change is in force for this table as soon as it stands in the leader's log, and is never taken
back: either it becomes committed, or its leader resigns and the table goes. Until it is committed
the id answers CONCURRENT_TRANSACTIONS, and whoever only looks (DescribeTransactions, verification)
sees what was committed before.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from kio.schema.errors import ErrorCode

from tidemark_broker.transactions.core.metadata import TransactionMetadata
from tidemark_broker.transactions.core.records import read_key, read_value
from tidemark_broker.transactions.core.rules import Decision

#: What an id and a partition of it weigh, beside the bytes of the id: measured, rounded up.
_ID_BYTES = 600
_PARTITION_BYTES = 100


@dataclass(slots=True)
class _Entry:
    """``appended`` is another than ``committed`` while a change is under way; None: a tombstone,
    or nothing yet."""

    committed: TransactionMetadata | None
    appended: TransactionMetadata | None

    @property
    def is_changing(self) -> bool:
        return self.appended is not self.committed


class Transactions:
    """By transactional id. ``weight_bytes`` is what they weigh in memory, roughly."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self.weight_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    # ------------------------------------------------------------ what there is

    def get(self, transactional_id: str) -> TransactionMetadata | None:
        """What is committed of it; None where it is unknown."""
        entry = self._entries.get(transactional_id)
        return None if entry is None else entry.committed

    def is_changing(self, transactional_id: str) -> bool:
        """Is a change of it appended and not committed?"""
        entry = self._entries.get(transactional_id)
        return entry is not None and entry.is_changing

    def all(self) -> Iterator[tuple[str, TransactionMetadata]]:
        """Each id with what is committed of it. A copy of the names: the table may change between
        two of them."""
        for transactional_id in tuple(self._entries):
            metadata = self.get(transactional_id)
            if metadata is not None:
                yield transactional_id, metadata

    def ids(self) -> Iterator[str]:
        """All of them, those with a change that is not committed as well."""
        return iter(self._entries)

    # ------------------------------------------------------------ from the log

    def replay(self, key: bytes, value: bytes | None) -> None:
        """A record of a former leader, or one of ours. Raises ``BadTransactionRecord``."""
        transactional_id = read_key(key)
        if transactional_id is None:
            return
        metadata = None if value is None else read_value(value)
        self._set(transactional_id, _Entry(metadata, metadata))

    # ------------------------------------------------------------ changes

    def decide(
        self, transactional_id: str, rule: Callable[[TransactionMetadata | None], Decision]
    ) -> Decision:
        """What ``rule`` (of :mod:`rules`) makes of it."""
        entry = self._entries.get(transactional_id)
        if entry is None:
            return rule(None)
        if entry.is_changing:
            return Decision(error=ErrorCode.concurrent_transactions)
        return rule(entry.committed)

    def appended(self, transactional_id: str, change: TransactionMetadata | None) -> None:
        """The change stands in the leader's log (None: a tombstone)."""
        before = self.get(transactional_id)
        assert not self.is_changing(transactional_id)
        self._set(transactional_id, _Entry(before, change))

    def committed(self, transactional_id: str) -> TransactionMetadata | None:
        """Its last change is committed: gives what it is now."""
        appended = self._entries[transactional_id].appended
        self._set(transactional_id, _Entry(appended, appended))
        return appended

    # ------------------------------------------------------------ time

    def has_expired(self, transactional_id: str, now_ms: int, expiration_ms: int) -> bool:
        """May it be forgotten (a tombstone)?"""
        metadata = self.get(transactional_id)
        if metadata is None or self.is_changing(transactional_id):
            return False
        return metadata.has_expired(now_ms, expiration_ms)

    # ------------------------------------------------------------ inside

    def _set(self, transactional_id: str, entry: _Entry) -> None:
        before = self._entries.pop(transactional_id, None)
        if before is not None:
            self.weight_bytes -= _weight(transactional_id, before)
        if entry.committed is None and entry.appended is None:
            return
        self._entries[transactional_id] = entry
        self.weight_bytes += _weight(transactional_id, entry)


def _weight(transactional_id: str, entry: _Entry) -> int:
    partitions = sum(
        len(each.partitions)
        for each in {id(each): each for each in (entry.committed, entry.appended)}.values()
        if each is not None
    )
    return _ID_BYTES + len(transactional_id) + _PARTITION_BYTES * partitions
