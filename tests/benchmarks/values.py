"""Cost of converting values with a schema to Arrow, with our decoders and with Python's own
libraries.

    python -m tests.benchmarks.values

Processor time of one thread for a record, both sides in turn and the least of three: Avro by our
decoder and by fastavro with pyarrow's conversion of its result, Protobuf by our columns and by a
dictionary of each of Google's messages with the same conversion.
"""

import io
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import fastavro
import numpy as np
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from tidemark_pipeline.schemas.avro.decode import AvroDecoder as OfAvro
from tidemark_pipeline.schemas.avro.schema import parse_schema
from tidemark_pipeline.schemas.avro.types import columns_of as columns_of_avro
from tidemark_pipeline.schemas.protobuf.decode import ProtobufDecoder as OfProtobuf
from tidemark_pipeline.schemas.protobuf.descriptors import by_name, compiled
from tidemark_pipeline.schemas.protobuf.types import columns_of as columns_of_protobuf
from tidemark_pipeline.schemas.values.decoder_results import Decoder

_RECORDS = 10_000
_ROUNDS = 3
_FLAT = {f"f{n}": ("int", "long", "string", "double", "boolean")[n % 5] for n in range(10)}
_WORDS: dict[str, Any] = {"int": 7, "long": 2**40, "string": "some text", "double": 0.5}
_LINE = [{"name": "n", "type": "int"}, {"name": "t", "type": "string"}]
AVRO: dict[str, tuple[Any, Any]] = {
    "ten fields": (
        [{"name": name, "type": kind} for name, kind in _FLAT.items()],
        {name: _WORDS.get(kind, True) for name, kind in _FLAT.items()},
    ),
    "five lines of two": (
        [
            {
                "name": "lines",
                "type": {
                    "type": "array",
                    "items": {"type": "record", "name": "L", "fields": _LINE},
                },
            }
        ],
        {"lines": [{"n": n, "t": "some text"} for n in range(5)]},
    ),
}
_PROTO = """
syntax = "proto3";
message R {
  int32 f0 = 1; int64 f1 = 2; string f2 = 3; double f3 = 4; bool f4 = 5;
  int32 f5 = 6; int64 f6 = 7; string f7 = 8; double f8 = 9; bool f9 = 10;
}
"""


def main() -> None:
    """Print a line for each kind."""
    print(f"{'values':<30}{'bytes':>6}{'ours us':>9}{'theirs us':>11}{'ratio':>7}{'MB/s':>7}")
    for name, (fields, value) in AVRO.items():
        schema = {"type": "record", "name": "R", "fields": fields}
        by_theirs = fastavro.parse_schema(schema)
        out = io.BytesIO()
        fastavro.schemaless_writer(out, by_theirs, value)
        writer = parse_schema(json.dumps(schema))

        def read(data: bytes, by: Any = by_theirs) -> Any:
            return fastavro.schemaless_reader(io.BytesIO(data), by, None)

        _line(f"Avro, {name}", out.getvalue(), OfAvro(writer, columns_of_avro(writer)), read)
    # The same ten fields as Protobuf.
    message = by_name(compiled(_PROTO))
    made = GetMessageClass(message)
    value = made(**AVRO["ten fields"][1])

    def parse(data: bytes) -> Any:
        found = made.FromString(data)
        return {name: getattr(found, name) for name in _FLAT}

    decoder = OfProtobuf(message, columns_of_protobuf(message))
    _line("Protobuf, ten fields", value.SerializeToString(), decoder, parse)


def _line(name: str, record: bytes, decoder: Decoder, read: Callable[[bytes], Any]) -> None:
    records = [record] * _RECORDS
    data = np.frombuffer(b"".join(records), dtype=np.uint8)
    ends = np.cumsum([len(item) for item in records])
    starts = ends - len(record)

    # The result of both is an Arrow array of the same type.
    def ours() -> Sequence[pa.Array]:
        return [piece.values for piece in decoder.decode(data, starts, ends)]

    kind = ours()[0].type

    def theirs() -> pa.Array:
        return pa.array([read(record) for record in records], kind)

    costs = [(_cpu_us(ours), _cpu_us(theirs)) for _ in range(_ROUNDS)]
    mine, other = min(cost for cost, _ in costs), min(cost for _, cost in costs)
    ratio, rate = other / mine, len(record) / mine
    print(f"{name:<30}{len(record):>6}{mine:>9.2f}{other:>11.2f}{ratio:>7.1f}{rate:>7.0f}")


def _cpu_us(work: Callable[[], object]) -> float:
    """Return the processor time of one record."""
    began_s = time.thread_time()
    work()
    return (time.thread_time() - began_s) / _RECORDS * 1e6


if __name__ == "__main__":
    main()
