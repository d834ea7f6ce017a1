"""Decode Avro records into Arrow, in pieces of limited size."""

from collections.abc import Iterator

import numpy as np
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StructType

from tidemark_avro import kernel
from tidemark_avro.arrow_columns import to_arrow
from tidemark_avro.decoder_results import Piece, reasons
from tidemark_avro.program import Compiled, compile_program
from tidemark_avro.schema import Schema

#: Entries in all slots (17 bytes each) at which a piece ends.
ENTRIES_MAX = 4_000_000
_CAPACITY_MIN = 64
_REASONS = {
    kernel.TRUNCATED: "the bytes end within it",
    kernel.OVERLONG: "a number has more than 64 bits",
    kernel.RANGE: "a number is out of range",
    kernel.NO_BOOLEAN: "a boolean is neither 0 nor 1",
    kernel.NO_TEXT: "a string is no UTF-8",
    kernel.NO_BRANCH: "the union has no such branch",
    kernel.NO_SYMBOL: "the enum has no such symbol",
    kernel.NO_COUNT: "there are more items than bytes",
    kernel.TOO_DEEP: "nested too deep",
    kernel.TOO_LARGE: "the record unpacks to too many values",
    kernel.DIGITS: "a decimal has too many digits",
    kernel.LEFTOVER: "bytes are left over behind it",
}


class AvroDecoder:
    """Decoder of records of one writer's schema into the columns of a table."""

    def __init__(self, writer: Schema, columns: StructType, reader: Schema | None = None) -> None:
        """Compile the schemas.

        Raises SchemaRefused if the writer's schema does not fit the columns.
        """
        self._compiled: Compiled = compile_program(writer, columns, reader)
        self._arrow_type = to_arrow_type(columns)
        #: Estimated entries per record in each slot, from the records decoded so far.
        self._entries_per_record = np.full(len(self._compiled.in_list), 2.0)

    def decode(
        self, data: kernel.Bytes, starts: kernel.Longs, ends: kernel.Longs
    ) -> Iterator[Piece]:
        """Yield the columns of all records ``data[starts[i]:ends[i]]``, in order and in pieces.

        An invalid record has a null row and an error in its piece.
        """
        compiled = self._compiled
        # Defaults and enum symbols are appended to the records, so that the kernel reads them from
        # the same buffer.
        program = compiled.at(len(data))
        if compiled.trailer:
            data = np.concatenate((data, np.frombuffer(compiled.trailer, dtype=np.uint8)))
        failures = np.zeros((len(starts), 2), dtype=np.int64)
        first = 0
        while first < len(starts):
            # A piece ends when the store has ENTRIES_MAX entries. A slot is the store's space for
            # one column.
            store = self._store(len(starts) - first)
            done = first
            while True:
                done, full = kernel.read_records(
                    program, store, data, starts, ends, done, ENTRIES_MAX, failures
                )
                if full < 0:
                    break
                # The slot ``full`` is full: enlarge it and continue. Later stores start
                # larger.
                store = _larger(store, full)
                self._entries_per_record = np.maximum(
                    self._entries_per_record, store.capacity / (len(starts) - first)
                )
            values = to_arrow(store, data, compiled.layout, self._arrow_type)
            # Records that failed are null. Their codes become messages with the field's path.
            codes = failures[first:done]
            failed = np.flatnonzero(codes[:, 0]).tolist()
            reason_of = {row: self._reason(*codes[row].tolist()) for row in failed}
            yield Piece(values, reasons(done - first, reason_of))
            first = done

    def _store(self, records: int) -> kernel.Store:
        in_list = np.array(self._compiled.in_list)
        # A slot outside lists has one entry per record at most.
        capacity = np.where(in_list, records * self._entries_per_record + _CAPACITY_MIN, records)
        return _store_of(capacity.astype(np.int64))

    def _reason(self, code: int, node: int) -> str:
        if code == kernel.UNFIT:
            return self._compiled.unfit[node]
        path = self._compiled.paths[node]
        return f"{path}: {_REASONS[code]}" if path else _REASONS[code]


def _store_of(capacity: kernel.Longs) -> kernel.Store:
    total = int(capacity.sum())
    return kernel.Store(
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.int64),
        np.empty(total, dtype=np.uint8),
        np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(capacity)[:-1])),
        capacity,
        np.zeros(len(capacity), dtype=np.int64),
        np.zeros(len(capacity), dtype=np.int64),
        np.empty((kernel.DEPTH_MAX, kernel.FRAME), dtype=np.int64),
    )


def _larger(store: kernel.Store, slot: int) -> kernel.Store:
    """Return a copy of the store with more capacity in this slot, and in all that are half full."""
    capacity = np.where(store.reached * 2 > store.capacity, store.capacity * 2, store.capacity)
    # Doubling limits the number of copies to the logarithm of the size.
    capacity[slot] = store.capacity[slot] * 2
    larger = _store_of(capacity)
    for stack in range(len(capacity)):
        size = store.size[stack]
        old, new = store.base[stack], larger.base[stack]
        for name in ("low", "high", "present"):
            getattr(larger, name)[new : new + size] = getattr(store, name)[old : old + size]
    larger.size[:] = store.size
    return larger
