"""Cost of converting Protobuf values to Arrow, with our decoder and with Google's library.

    python -m tests.benchmarks.values

Processor time of one thread for a record, both sides in turn and the least of three. The other side
makes a dictionary of each of Google's messages, which pyarrow converts.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass

from tidemark_pipeline.schemas.protobuf.decode import ProtobufDecoder
from tidemark_pipeline.schemas.protobuf.descriptors import by_name, compiled
from tidemark_pipeline.schemas.protobuf.types import columns_of
from tidemark_pipeline.schemas.sources import Decoder

_RECORDS = 10_000
_ROUNDS = 3
FLAT = {f"f{n}": ("int", "long", "string", "double", "boolean")[n % 5] for n in range(10)}
_WORDS: dict[str, Any] = {"int": 7, "long": 2**40, "string": "some text", "double": 0.5}
FLAT_VALUE = {name: _WORDS.get(kind, True) for name, kind in FLAT.items()}
_PROTO = """
syntax = "proto3";
message R {
  int32 f0 = 1; int64 f1 = 2; string f2 = 3; double f3 = 4; bool f4 = 5;
  int32 f5 = 6; int64 f6 = 7; string f7 = 8; double f8 = 9; bool f9 = 10;
}
"""


def main() -> None:
    """Print a line for ten fields."""
    print_header()
    message = by_name(compiled(_PROTO))
    made = GetMessageClass(message)
    value = made(**FLAT_VALUE)

    def parse(data: bytes) -> Any:
        found = made.FromString(data)
        return {name: getattr(found, name) for name in FLAT}

    decoder = ProtobufDecoder(message, columns_of(message))
    compare("Protobuf, ten fields", value.SerializeToString(), decoder, parse)


def print_header() -> None:
    """Print the names of the columns of :func:`compare`."""
    print(f"{'values':<30}{'bytes':>6}{'ours us':>9}{'theirs us':>11}{'ratio':>7}{'MB/s':>7}")


def compare(name: str, record: bytes, decoder: Decoder, read: Callable[[bytes], Any]) -> None:
    """Print the costs of one record by our decoder, and by ``read`` with pyarrow's conversion."""
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
