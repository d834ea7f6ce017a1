"""Conversion of slots into Arrow arrays, a column at a time."""

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    StringType,
)

from tidemark_avro import kernel
from tidemark_avro.layout import Layout, Leaf, ListOf, MapOf, StructOf


def to_arrow(
    store: kernel.Store, data: kernel.Bytes, layout: Layout, column_type: pa.DataType
) -> pa.Array:
    """Return the decoded values of one column, with its nested columns, as an Arrow array.

    ``store``: values that the kernel has read. ``data``: buffer of all texts and bytes. ``layout``:
    place of the column's values in the store. ``column_type``: its Arrow type.
    """
    first = store.base[layout.slot]
    entries = slice(first, first + store.size[layout.slot])
    valid = store.present[entries]
    if isinstance(layout, Leaf):
        return _leaf(store, data, layout, entries, column_type)
    # Structs, lists and maps share the validity buffer, and differ in their children.
    validity = _bits(valid)
    if isinstance(layout, StructOf):
        children = [
            to_arrow(store, data, field, column_type.field(name).type)
            for name, field in layout.fields
        ]
        return pa.Array.from_buffers(column_type, len(valid), [validity], children=children)
    lengths = store.low[entries]
    if isinstance(layout, ListOf):
        children = [to_arrow(store, data, layout.item, column_type.value_type)]
    else:
        # A map is an Arrow list of key-value pairs.
        assert isinstance(layout, MapOf)
        pair = pa.struct([column_type.key_field, column_type.item_field])
        pairs = [
            to_arrow(store, data, layout.key, column_type.key_type),
            to_arrow(store, data, layout.value, column_type.item_type),
        ]
        pairs, lengths = _last_of_each_key(pairs, lengths)
        children = [pa.Array.from_buffers(pair, len(pairs[0]), [None], children=pairs)]
    # Arrow stores the offsets of lists instead of their lengths.
    buffers = [validity, pa.py_buffer(_offsets(lengths))]
    return pa.Array.from_buffers(column_type, len(valid), buffers, children=children)


def _last_of_each_key(
    pairs: list[pa.Array], lengths: kernel.Longs
) -> tuple[list[pa.Array], kernel.Longs]:
    """Remove all but the last entry of each repeated key from the maps of a column.

    ``pairs``: arrays of all keys and of all values. ``lengths``: number of entries of each map.
    Returns both in the same form. Avro allows repeated keys. Arrow and Spark do not, and they do
    not check either.
    """
    keys, values = pairs
    if not len(keys):
        return pairs, lengths
    # Number each (map, key) pair. In the reversed array, unique returns the last entry of each.
    rows = np.repeat(np.arange(len(lengths)), lengths)
    codes = keys.dictionary_encode().indices.to_numpy(zero_copy_only=False).astype(np.int64)
    of_map = rows * (int(codes.max()) + 1) + codes
    _, last_reversed = np.unique(of_map[::-1], return_index=True)
    if len(last_reversed) == len(keys):
        return pairs, lengths
    # Sorted into the original order, in which the entries of each map are consecutive.
    kept = np.sort(len(keys) - 1 - last_reversed)
    counts = np.bincount(rows[kept], minlength=len(lengths)).astype(np.int64)
    return [keys.take(pa.array(kept)), values.take(pa.array(kept))], counts


def _leaf(
    store: kernel.Store, data: kernel.Bytes, layout: Leaf, entries: slice, column_type: pa.DataType
) -> pa.Array:
    """Return the Arrow array of a column of single values, such as numbers and texts.

    ``entries``: range of the column's values in the store.
    """
    low, high = store.low[entries], store.high[entries]
    # Each value has two words: position and length for texts and bytes, both halves for decimals,
    # otherwise the value in ``low``.
    validity = _bits(store.present[entries])
    match layout.type:
        case StringType() | BinaryType():
            # Texts are copied from the records into one buffer, as Arrow stores them without gaps.
            offsets = _offsets(high)
            out = np.empty(int(offsets[-1]), dtype=np.uint8)
            kernel.gather(data, low, offsets, out)
            buffers = [validity, pa.py_buffer(offsets), pa.py_buffer(out)]
        case DecimalType():
            # Arrow stores a decimal in 16 bytes, the low word first.
            halves = np.empty((len(low), 2), dtype=np.int64)
            halves[:, 0], halves[:, 1] = low, high
            buffers = [validity, pa.py_buffer(halves)]
        case BooleanType():
            buffers = [validity, _bits(low.astype(np.uint8))]
        case DoubleType():
            buffers = [validity, pa.py_buffer(low.copy())]
        case FloatType():
            # A double beyond a float becomes infinity, without numpy's warning.
            with np.errstate(over="ignore"):
                singles = low.view(np.float64).astype(np.float32)
            buffers = [validity, pa.py_buffer(singles)]
        case IntegerType() | DateType():
            buffers = [validity, pa.py_buffer(low.astype(np.int32))]
        case _:
            # Copied, as the slice belongs to the store of all slots.
            buffers = [validity, pa.py_buffer(low.copy())]
    return pa.Array.from_buffers(column_type, len(low), buffers)


def _bits(valid: kernel.Bytes) -> pa.Buffer:
    return pa.py_buffer(np.packbits(valid, bitorder="little"))


def _offsets(lengths: kernel.Longs) -> "np.ndarray[tuple[int], np.dtype[np.int32]]":
    ends = np.cumsum(lengths, dtype=np.int64)
    # Arrow's offsets have 32 bits.
    if len(ends) and ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("one Arrow batch would have more than 2 GiB in a column")
    offsets = np.zeros(len(lengths) + 1, dtype=np.int32)
    offsets[1:] = ends
    return offsets
