"""What decoders of single formats give: records some at a time, each a row or why it is none."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
#: Of a reason.
LETTERS_MAX = 500


@dataclass(frozen=True, slots=True)
class Piece:
    """Some of the records, in order: ``values`` is null where ``errors`` says why, and that is null
    where nothing is wrong."""

    values: pa.Array
    errors: pa.Array


def reasons(count: int, found: Mapping[int, str]) -> pa.Array:
    """Of so many records, of which few have one, by their places."""
    if not found:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = [None] * count
    for place, text in found.items():
        texts[place] = text if len(text) <= LETTERS_MAX else text[: LETTERS_MAX - 1] + "…"
    return pa.array(texts, pa.string())


class Decoder(Protocol):
    """Of one schema, into the columns of a table."""

    def decode(self, data: Bytes, starts: Longs, ends: Longs) -> Iterator[Piece]:
        """Pieces of the records ``data[starts[i]:ends[i]]``, which are all of them in the end.
        Never raises for what a record has."""
