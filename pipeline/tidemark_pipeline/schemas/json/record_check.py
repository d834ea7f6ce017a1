"""Check of JSON records against a table's columns, before Spark's parser reads them.

Spark's parser ignores unknown names, even a column's name in another case, and turns a number that
is too large into infinity. So Python workers check each record first, as for Avro and Protobuf.
"""

import json
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    FloatType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemark.message_text import count
from tidemark_avro.column_rules import COLUMNS_MAX, folded
from tidemark_avro.decoder_results import reasons
from tidemark_pipeline.schemas.json.inference import (
    ELEMENT,
    PATH_LENGTH_MAX,
    VALUE,
    PlaceBudget,
    RecordShape,
    checked_name,
    new_fields,
)
from tidemark_pipeline.schemas.json.text import RecordRefused, parse_object
from tidemark_pipeline.schemas.value_format import END_SECOND, FIRST_SECOND, ColumnNames

#: Columns that are added to a batch: the cause if a record is refused, and whether its only cause
#: is new fields that the table could have.
CAUSE, HAS_NEW_FIELDS = "_cause", "_has_new_fields"
#: Fields that one batch may add to a table. If there are more, the names are data.
NEW_MAX = 100
#: Column of a summary.
SHAPE = "shape"
_FLOAT_MAX = 3.4028235677973366e38
_DOUBLE_END = 2**1024

_ValueCheck = Callable[[Any, "_NewColumns"], None]


@dataclass(slots=True)
class _NewColumns:
    """New columns of one record: their number, and the place of the first."""

    count: int = 0
    where: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of a check.

    ``cause``: reason why the record cannot be a row, "" if none is known. ``has_new_fields``: it
    could be a row if the table had more columns.
    """

    cause: str = ""
    has_new_fields: bool = False


class RecordCheck:
    """Check of records for a table with ``columns``.

    ``grows``: new fields are reported instead of ignored. One record may have at most ``new_max``.
    """

    def __init__(
        self,
        columns: StructType,
        names: ColumnNames,
        *,
        grows: bool = False,
        new_max: int = NEW_MAX,
    ) -> None:
        self._names, self._grows, self._new_max = names, grows, new_max
        self._check = self._of_struct(columns, "", 1)

    def judge(self, value: bytes) -> Verdict:
        """Return whether one record value (JSON text) can be a row of the table. Never raises."""
        new_columns = _NewColumns()
        try:
            self._check(parse_object(value), new_columns)
        except RecordRefused as refused:
            return Verdict(str(refused))
        if not new_columns.count:
            return Verdict()
        # A record with very many new fields usually has data (such as ids) as field names.
        if new_columns.count > self._new_max:
            return Verdict(
                f"it has {count(new_columns.count, 'field')} that the table does not have, and "
                f"{self._new_max} at once are the most that are added"
            )
        return Verdict(
            f"{new_columns.where}: the table has no such field; a batch adds {NEW_MAX} fields at "
            f"most, and a table has {COLUMNS_MAX} at most",
            has_new_fields=True,
        )

    def _of(self, kind: DataType, where: str, depth: int) -> _ValueCheck | None:
        """Return the check of a column, None if no part of its values can be lost silently."""
        if isinstance(kind, StructType):
            return self._of_struct(kind, where, depth + 1)
        if isinstance(kind, ArrayType):
            return _of_each(list, self._of(kind.elementType, f"{where}.{ELEMENT}", depth + 1), list)
        if isinstance(kind, MapType):
            inner = self._of(kind.valueType, f"{where}.{VALUE}", depth + 1)
            return _of_each(dict, inner, dict.values)
        if isinstance(kind, DoubleType | FloatType):
            return _of_number(where, _FLOAT_MAX if isinstance(kind, FloatType) else None)
        if isinstance(kind, TimestampType | TimestampNTZType):
            return _of_time(where)
        return _of_text(where) if isinstance(kind, StringType) else None

    def _of_struct(self, columns: StructType, where: str, depth: int) -> _ValueCheck:
        """Return the check of a struct column: for unknown field names, then for field values.

        ``where``: path of the column, "" for the record itself. ``depth``: its nesting depth.
        """
        # Prepared once for each column, as the check runs for each record.
        prefix = f"{where}." if where else ""
        known = frozenset(columns.fieldNames())
        by_fold = {folded(name): name for name in known}
        checks = [
            (column.name, check)
            for column in columns
            if (check := self._of(column.dataType, prefix + column.name, depth)) is not None
        ]

        def check_struct(value: Any, new_columns: _NewColumns) -> None:
            """Check one value and add its new fields to ``new_columns``.

            Raises :class:`RecordRefused` if Spark's parser would lose a part of the value.
            """
            if type(value) is not dict:
                return  # Spark's parser reports that it does not fit
            # Spark's parser would silently ignore fields without a column.
            if not value.keys() <= known:
                unknown = {n: item for n, item in value.items() if n not in known}
                for name, item in unknown.items():
                    same = by_fold.get(folded(name))
                    if same is not None and item is not None:
                        raise RecordRefused(
                            f"{prefix + name!r}: the column {same} differs from it by case only"
                        )
                if self._grows:
                    self._find_new(unknown, prefix, depth, new_columns)
            # Only columns whose values can be lost silently have a check.
            for name, check in checks:
                item = value.get(name)
                if item is not None:
                    check(item, new_columns)

        return check_struct

    def _find_new(
        self, unknown: dict[str, Any], prefix: str, depth: int, new_columns: _NewColumns
    ) -> None:
        names: dict[str, str] = {}
        for name, item in unknown.items():
            where = (prefix + name)[:PATH_LENGTH_MAX]
            if size := new_fields(item, where, self._names, depth):
                checked_name(name, where, self._names, names, is_top_level=not prefix)
                new_columns.count += size
                new_columns.where = new_columns.where or where


def _of_each(
    container: type, check: _ValueCheck | None, items: Callable[[Any], Any]
) -> _ValueCheck | None:
    if check is None:
        return None

    def check_each(value: Any, new_columns: _NewColumns) -> None:
        if type(value) is container:
            for item in items(value):
                if item is not None:
                    check(item, new_columns)

    return check_each


def _of_number(where: str, most: float | None) -> _ValueCheck:
    def check_number(value: Any, _: _NewColumns) -> None:
        kind = type(value)
        if kind not in (int, float):
            return
        # math.isinf raises for a whole number beyond a double, so whole numbers are compared.
        if math.isinf(value) if kind is float else abs(value) >= _DOUBLE_END:
            raise _beyond_double(where)
        if most is not None and abs(value) > most:
            raise RecordRefused(f"{where}: a number is beyond a float")

    return check_number


def _of_text(where: str) -> _ValueCheck:
    """Return the check that a value for a string column is not changed.

    Spark writes other JSON values as text, and a number beyond a double as a different text.
    """

    def check_text(value: Any, new_columns: _NewColumns) -> None:
        kind = type(value)
        if kind is float and math.isinf(value):
            raise _beyond_double(where)
        if kind is list:
            for item in value:
                check_text(item, new_columns)
        elif kind is dict:
            for item in value.values():
                check_text(item, new_columns)

    return check_text


def _of_time(where: str) -> _ValueCheck:
    """Return the check of a time column.

    A whole number counts as seconds, and Spark multiplies it without an overflow check.
    """

    def check_time(value: Any, _: _NewColumns) -> None:
        if type(value) is int and not FIRST_SECOND <= value < END_SECOND:
            raise RecordRefused(
                f"{where}: {str(value)[:20]} seconds are not between the years 1 and 9999"
            )

    return check_time


def _beyond_double(where: str) -> RecordRefused:
    return RecordRefused(f"{where}: a number is beyond a double")


def checked_schema(given: StructType) -> StructType:
    """Return the schema of a frame of schema ``given`` after :class:`WorkerRecordCheck`."""
    return StructType([*given.fields]).add(CAUSE, "string").add(HAS_NEW_FIELDS, "boolean")


@dataclass(frozen=True, slots=True)
class WorkerRecordCheck:
    """Record check that Spark sends to its Python workers, for a table with ``columns``.

    ``columns`` is a schema as Spark's JSON, since the check is serialized. The other fields are
    those of :class:`RecordCheck`.
    """

    columns: str
    names: ColumnNames = field(default_factory=ColumnNames)
    grows: bool = False
    new_max: int = NEW_MAX

    @property
    def fields(self) -> StructType:
        """Columns of the table, parsed from ``columns``."""
        return StructType.fromJson(json.loads(self.columns))

    def check(self) -> RecordCheck:
        """Return the check of single records."""
        return RecordCheck(self.fields, self.names, grows=self.grows, new_max=self.new_max)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield each batch with two more columns: CAUSE and HAS_NEW_FIELDS."""
        check = self.check()
        for batch in batches:
            values = batch.column(batch.schema.get_field_index("value")).to_pylist()
            causes: dict[int, str] = {}
            new: list[bool] = []
            for place, value in enumerate(values):
                # A null value (a tombstone) is no JSON and is always accepted.
                verdict = Verdict() if value is None else check.judge(value)
                new.append(verdict.has_new_fields)
                if verdict.cause:
                    # A name may have half of a surrogate pair, which cannot be encoded.
                    causes[place] = verdict.cause.encode("utf-8", "replace").decode("utf-8")
            arrays = [*batch.columns, reasons(len(values), causes), pa.array(new, pa.bool_())]
            yield pa.RecordBatch.from_arrays(
                arrays, names=[*batch.schema.names, CAUSE, HAS_NEW_FIELDS]
            )


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of batches in a worker.

    Each task returns one row with the shape of all values that ``checking`` would accept if the
    table had more columns.
    """

    checking: WorkerRecordCheck

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        check, places, shape = self.checking.check(), PlaceBudget(), RecordShape()
        columns = self.checking.fields
        for batch in batches:
            for value in batch.column(batch.schema.get_field_index("value")).to_pylist():
                if value is not None and check.judge(value).has_new_fields:
                    shape.add(unknown_parts(parse_object(value), columns), places)
        text = json.dumps(shape.to_json())
        yield pa.RecordBatch.from_arrays([pa.array([text], pa.string())], names=[SHAPE])


def unknown_parts(value: Any, kind: DataType) -> Any:
    """Return the parts of a JSON value for which the type has no columns; None if there are none.

    Parents of such parts are kept, so that the result has the shape of the value. The values of a
    map are returned as a list, because its keys are data.
    """
    if isinstance(kind, StructType) and isinstance(value, dict):
        columns = {column.name: column.dataType for column in kind}
        parts = {
            name: unknown_parts(item, columns[name]) if name in columns else item
            for name, item in value.items()
        }
        return {name: part for name, part in parts.items() if part is not None} or None
    inner, items = None, []
    if isinstance(kind, ArrayType) and isinstance(value, list):
        inner, items = kind.elementType, value
    elif isinstance(kind, MapType) and isinstance(value, dict):
        inner, items = kind.valueType, list(value.values())
    # Items of plain types have no unknown parts.
    if not isinstance(inner, StructType | ArrayType | MapType):
        return None
    return [part for item in items if (part := unknown_parts(item, inner)) is not None] or None


def merged(texts: Iterable[str]) -> RecordShape:
    """Merge the shapes that :class:`Summary` wrote."""
    shape, places = RecordShape(), PlaceBudget()
    for text in texts:
        shape.merge(RecordShape.of_json(json.loads(text)), places)
    return shape
