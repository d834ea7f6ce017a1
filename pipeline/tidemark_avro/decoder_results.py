"""Results of a decoder: pieces of records, each a row or a reason."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes = npt.NDArray[np.uint8]
Longs = npt.NDArray[np.int64]
#: Length of a reason in characters. A longer one is cut.
REASON_LENGTH_MAX = 500


@dataclass(frozen=True, slots=True)
class Piece:
    """Consecutive records.

    ``values`` is null where ``errors`` has a reason, and ``errors`` is null elsewhere.
    """

    values: pa.Array
    errors: pa.Array


def reasons(count: int, reason_of: Mapping[int, str]) -> pa.Array:
    """Return the reasons of ``count`` records as an array, given by the records' positions."""
    # Most pieces have no failure, so the list of texts is not built for them.
    if not reason_of:
        return pa.nulls(count, pa.string())
    texts: list[str | None] = [None] * count
    for place, text in reason_of.items():
        texts[place] = (
            text if len(text) <= REASON_LENGTH_MAX else text[: REASON_LENGTH_MAX - 1] + "…"
        )
    return pa.array(texts, pa.string())
