"""Cost of converting Avro records to Arrow, with tidemark_avro and with fastavro.

    python -m tests.benchmarks.avro

Processor time of one thread for a record, both sides in turn and the least of three. fastavro's
results are converted by pyarrow.
"""

import io
import json
from typing import Any

import fastavro

from tests.benchmarks.values import FLAT, FLAT_VALUE, compare, print_header
from tidemark_avro.column_types import columns_of
from tidemark_avro.decode import AvroDecoder
from tidemark_avro.schema import parse_schema

_LINE = [{"name": "n", "type": "int"}, {"name": "t", "type": "string"}]
_LINES = {"type": "array", "items": {"type": "record", "name": "L", "fields": _LINE}}
#: Fields and a value of each kind of record.
RECORDS: dict[str, tuple[Any, Any]] = {
    "ten fields": ([{"name": name, "type": kind} for name, kind in FLAT.items()], FLAT_VALUE),
    "five lines of two": (
        [{"name": "lines", "type": _LINES}],
        {"lines": [{"n": n, "t": "some text"} for n in range(5)]},
    ),
}


def main() -> None:
    """Print a line for each kind of record."""
    print_header()
    for name, (fields, value) in RECORDS.items():
        schema = {"type": "record", "name": "R", "fields": fields}
        by_theirs = fastavro.parse_schema(schema)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, by_theirs, value)
        writer = parse_schema(json.dumps(schema))

        def read(data: bytes, by: Any = by_theirs) -> Any:
            return fastavro.schemaless_reader(io.BytesIO(data), by, None)

        decoder = AvroDecoder(writer, columns_of(writer))
        compare(f"Avro, {name}", out.getvalue(), decoder, read)


if __name__ == "__main__":
    main()
