"""Manifest of a segment: JSON that the plug-in writes after the segment's log and indexes.

The log is divided into chunks of equal size. Each one is compressed with zstd or not, then
encrypted with AES-256-GCM or not, and the results are stored one after the other. The chunk index
has the sizes of the stored chunks: two numbers if they are equal (``fixed``), otherwise a list
(``variable``).

That list is base64 of zstd of, big endian: count u32, base u32, bytes per value u8, each value but
the last as difference to the base, the last value u32. A list of one value has only the count and
the value.

An encrypted chunk or index is 12 bytes of nonce, the ciphertext and 16 bytes of tag. Its additional
data (``aad``) are the same for the whole segment. Indexes are not compressed.
"""

import base64
import itertools
import json
import struct
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import cramjam
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from tidemark.ids import parse_id
from tidemark.records.batch import CorruptBatch
from tidemark.records.codecs import Codec, decompress
from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark_pipeline.aiven.private_keys import PrivateKeys

SUPPORTED = "1"
#: Names of the indexes that are read.
OFFSET, TIMESTAMP, LEADER_EPOCH, TRANSACTION = "offset", "timestamp", "leaderEpoch", "transaction"
_SIZES_BYTES_MAX = 10 * 1024 * 1024
_CHUNKS_MAX = 1_000_000
#: The plug-in counts bytes of a segment in 32 bits.
_BYTES_MAX = 2**31 - 1
_OFFSET_MAX = 2**63 - 1
_NONCE_BYTES = 12


#: Errors of a parser that does not find what a manifest has.
_DAMAGE = (
    *(ValueError, KeyError, TypeError, AttributeError, OverflowError),
    *(struct.error, RecursionError),
)


class ChunkDamaged(ValueError):
    """Stored bytes are not what the plug-in wrote."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """Chunks of a log.

    ``chunk_bytes``: size of each but the last. ``log_bytes``: of all. ``stored_ends``: exclusive
    end of each stored chunk in the object.
    """

    chunk_bytes: int
    log_bytes: int
    stored_ends: tuple[int, ...]

    def containing(self, start: int, end: int) -> range:
        """Return the numbers of the chunks with the bytes ``start`` to ``end`` of the log."""
        return range(start // self.chunk_bytes, -(-end // self.chunk_bytes))

    def stored_start(self, number: int) -> int:
        """Return the position in the object at which a stored chunk starts."""
        return self.stored_ends[number - 1] if number else 0

    def size_of(self, number: int) -> int:
        """Return the size of a chunk in the log."""
        return min(self.chunk_bytes, self.log_bytes - number * self.chunk_bytes)


@dataclass(frozen=True, slots=True)
class Encryption:
    """Encrypted data key of a segment, id of the key that decrypts it, and the additional data."""

    key_id: str
    wrapped_key: bytes
    additional_data: bytes


@dataclass(frozen=True, slots=True)
class Manifest:
    """Manifest of a segment. ``indexes``: position and size in their object, by name.

    ``chunk_index``: its fields as they are. ``where``: the manifest's location, for errors.
    """

    chunk_index: Mapping[str, Any]
    indexes: Mapping[str, tuple[int, int]]
    is_compressed: bool
    encryption: Encryption | None
    entry: SegmentEntry
    where: str

    def chunks(self) -> Chunks:
        """Return the chunks of the log. Raises ManifestCorrupt.

        A plan reads the manifests of all segments and needs no chunk, and decoding them takes
        longer than everything else of a manifest.
        """
        try:
            return _chunks_of(self.chunk_index)
        except _DAMAGE as error:
            raise _damaged(self.where, error) from error


@dataclass(frozen=True, slots=True)
class Transformation:
    """Way from stored bytes to those of the log. ``cipher``: None if they are not encrypted."""

    is_compressed: bool
    cipher: AESGCM | None
    additional_data: bytes

    @classmethod
    def of(cls, manifest: Manifest, keys: PrivateKeys, what: str) -> "Transformation":
        """Return the transformation of a segment. Raises PrivateKeyMissing, ManifestCorrupt."""
        encryption = manifest.encryption
        if encryption is None:
            return cls(manifest.is_compressed, None, b"")
        key = keys.unwrap(encryption.key_id, encryption.wrapped_key, what)
        try:
            cipher = AESGCM(key)
        except ValueError as error:
            raise ManifestCorrupt(f"{what} has a data key of {len(key)} bytes") from error
        return cls(manifest.is_compressed, cipher, encryption.additional_data)

    @property
    def is_identity(self) -> bool:
        """Whether the log is stored byte for byte."""
        return self.cipher is None and not self.is_compressed

    def open(self, stored: bytes) -> bytes:
        """Return the decrypted bytes of a stored chunk or index. Raises ChunkDamaged."""
        if self.cipher is None:
            return stored
        nonce, sealed = stored[:_NONCE_BYTES], stored[_NONCE_BYTES:]
        try:
            return bytes(self.cipher.decrypt(nonce, sealed, self.additional_data))
        except (InvalidTag, ValueError) as error:
            raise ChunkDamaged("its bytes cannot be decrypted") from error

    def log_chunk(self, stored: bytes, size: int) -> bytes:
        """Return the ``size`` bytes of the log in a stored chunk. Raises ChunkDamaged."""
        opened = self.open(stored)
        if self.is_compressed:
            # A chunk never becomes larger than the manifest says.
            buffer = bytearray(size)
            try:
                written = cramjam.zstd.decompress_into(opened, buffer)
            except cramjam.DecompressionError as error:
                raise ChunkDamaged(f"its bytes cannot be decompressed ({error})") from error
            opened = bytes(memoryview(buffer)[:written])
        if len(opened) != size:
            raise ChunkDamaged(f"it has {len(opened)} bytes of the log, not {size}")
        return opened


def parse(data: bytes, key: str, where: str) -> Manifest:
    """Return a manifest. ``key``: of the segment's objects, without suffix. ``where``: for errors.

    Raises ManifestCorrupt for anything that is not a manifest of :data:`SUPPORTED`. The chunk index
    is not checked, see :meth:`Manifest.chunks`.
    """
    try:
        fields = json.loads(data)
        version = str(fields["version"])
        if version == SUPPORTED:
            return _manifest_of(fields, key, where)
    except _DAMAGE as error:
        raise _damaged(where, error) from error
    raise ManifestCorrupt(
        f"{where} has version {version[:20]!r}, this version of Tidemark reads {SUPPORTED}: "
        "upgrade Tidemark"
    )


def _damaged(where: str, error: Exception) -> ManifestCorrupt:
    return ManifestCorrupt(f"{where} is damaged, or no manifest ({error!r})")


def _manifest_of(fields: Mapping[str, Any], key: str, where: str) -> Manifest:
    chunk_index = fields["chunkIndex"]
    indexes = {
        name: (_size(place["position"]), _size(place["size"]))
        for name, place in fields["segmentIndexes"].items()
        # A segment without aborted transactions has no transaction index.
        if place is not None
    }
    # They are needed by every read, the others by some.
    if not {OFFSET, TIMESTAMP, LEADER_EPOCH} <= indexes.keys():
        raise ValueError("an index is missing")
    encryption = fields.get("encryption")
    return Manifest(
        chunk_index=chunk_index,
        indexes=indexes,
        is_compressed=fields["compression"] is True,
        encryption=None if encryption is None else _encryption_of(encryption),
        entry=_entry_of(
            fields["remoteLogSegmentMetadata"], _size(chunk_index["originalFileSize"]), key
        ),
        where=where,
    )


def _chunks_of(fields: Mapping[str, Any]) -> Chunks:
    chunk_bytes, log_bytes = _size(fields["originalChunkSize"]), _size(fields["originalFileSize"])
    if chunk_bytes < 1:
        raise ValueError("chunks without bytes")
    # Each chunk but the last is full. The number bounds the work of all that follows.
    count = -(-log_bytes // chunk_bytes)
    if count > _CHUNKS_MAX:
        raise ValueError(f"{count} chunks, at most {_CHUNKS_MAX} are read")
    # Compressed chunks have different sizes, the others equal ones.
    sizes: Iterable[int]
    match fields["type"]:
        case "fixed":
            each, last = fields["transformedChunkSize"], fields["finalTransformedChunkSize"]
            sizes = itertools.chain(itertools.repeat(_size(each), count - 1), (_size(last),))
        case "variable":
            sizes = _sizes_of(fields["transformedChunks"])
        case other:
            raise ValueError(f"chunk index of type {other!r}")
    ends = tuple(itertools.accumulate(map(_stored_size(chunk_bytes), sizes))) if count else ()
    if len(ends) != count:
        raise ValueError(f"{len(ends)} sizes of {count} chunks")
    return Chunks(chunk_bytes, log_bytes, ends)


def _stored_size(chunk_bytes: int) -> Callable[[int], int]:
    """Return a check of stored sizes, so that a read never fetches much more than it needs."""

    def checked(size: int) -> int:
        # No chunk grows by more than this when zstd cannot compress it and AES adds its tag.
        if size > chunk_bytes + chunk_bytes // 128 + 1024:
            raise ValueError(f"{size} stored bytes of a chunk of {chunk_bytes}")
        return size

    return checked


def _sizes_of(text: str) -> list[int]:
    """Return the sizes of stored chunks from their encoded list; see the module."""
    packed = base64.b64decode(text, validate=True)
    try:
        data = decompress(Codec.ZSTD, packed, limit_bytes=_SIZES_BYTES_MAX)
    except CorruptBatch as error:
        raise ValueError(str(error)) from error
    (count,) = struct.unpack_from(">I", data)
    if count < 2:
        return [size for (size,) in struct.iter_unpack(">I", data[4:])]
    base, width = struct.unpack_from(">IB", data, 4)
    behind = 9 + (count - 1) * width
    # The list ends with its last value.
    if not 1 <= width <= 4 or len(data) != behind + 4:
        raise ValueError(f"{len(data)} bytes are no list of {count} sizes")
    sizes = [
        base + int.from_bytes(data[begin : begin + width]) for begin in range(9, behind, width)
    ]
    return [*sizes, int.from_bytes(data[behind:])]


def _encryption_of(fields: Mapping[str, Any]) -> Encryption:
    key_id, colon, wrapped = str(fields["dataKey"]).partition(":")
    if not colon:
        raise ValueError("a data key without the id of its key")
    return Encryption(
        key_id,
        base64.b64decode(wrapped, validate=True),
        base64.b64decode(fields["aad"], validate=True),
    )


def _entry_of(fields: Mapping[str, Any], log_bytes: int, key: str) -> SegmentEntry:
    """Return the segment as Tidemark's manifests describe one."""
    epochs = tuple(
        sorted((int(epoch), int(start)) for epoch, start in fields["segmentLeaderEpochs"].items())
    )
    start, end = int(fields["startOffset"]), int(fields["endOffset"])
    # Epochs and their first offsets both rise.
    starts = [at for _, at in epochs]
    if not epochs or not 0 <= start <= end <= _OFFSET_MAX or starts != sorted(set(starts)):
        raise ValueError(f"offsets {start} to {end} with {len(epochs)} leader epochs")
    return SegmentEntry(
        segment_id=parse_id(str(fields["remoteLogSegmentId"]["id"])),
        start_offset=start,
        end_offset_inclusive=end,
        from_offset=start,
        max_timestamp_ms=int(fields["maxTimestampMs"]),
        size_bytes=log_bytes,
        broker_id=int(fields["brokerId"]),
        event_time_ms=int(fields["eventTimestampMs"]),
        leader_epochs=epochs,
        # The plug-in does not record the epoch of the copier, which is at least that of the data.
        leader_epoch=epochs[-1][0],
        # A tiered epoch is Tidemark's own.
        tiered_epoch=0,
        key=key,
        state=SegmentState.COPY_FINISHED,
    )


def _size(value: object) -> int:
    if not isinstance(value, int) or not 0 <= value <= _BYTES_MAX:
        raise ValueError(f"{value!r} is no number of bytes")
    return value
