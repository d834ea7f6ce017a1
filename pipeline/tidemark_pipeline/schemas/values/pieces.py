"""What decoders of single formats give: records some at a time, each a row or why it is none."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the records, in order: ``values`` is null where ``errors`` says why."""

    values: pa.Array
    errors: list[str | None]


class Decoder(Protocol):
    """Of one schema, into the columns of a table."""

    def decode(self, data: Bytes, starts: Longs, ends: Longs) -> Iterator[Piece]:
        """Pieces of the records ``data[starts[i]:ends[i]]``, which are all of them in the end.
        Never raises for what a record has."""
