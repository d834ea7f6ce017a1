"""The compression codecs of record batches, with a limit on what a block may unpack to.

Kafka's snappy is xerial's framing (a 16-byte header, then chunks with an int32 length); bare
snappy is read as well, since some old clients wrote it. lz4 is the frame format with independent
blocks: Java clients refuse linked ones.
"""

import enum
import struct
from typing import Any

import cramjam

from tidemark.records.batch import CorruptBatch

#: One batch never unpacks to more than this unless the caller allows it.
UNPACKED_BYTES_MAX = 256 * 1024 * 1024

#: How many bytes one packed byte can become at most. gzip: a match of 258 bytes in two bits (RFC
#: 1951); snappy: one of 64 in three bytes; lz4: 255 for each byte of a match's length; zstd:
#: 128 KiB in the four bytes of an RLE block (RFC 8878).
_EXPANSION_MAX = {0: 1, 1: 1032, 2: 22, 3: 255, 4: 32 * 1024}

_XERIAL_MAGIC = b"\x82SNAPPY\x00"
_XERIAL_HEADER = _XERIAL_MAGIC + struct.pack(">ii", 1, 1)
_XERIAL_CHUNK_BYTES = 32 * 1024
_FIRST_GUESS_BYTES = 64 * 1024
#: Largest block of a frame by its header, which has independent blocks and nothing optional, as
#: those of librdkafka and of Java clients. The last byte is the header's checksum.
_LZ4_PLAIN = {
    b"\x04\x22\x4d\x18\x60\x40\x82": 64 * 1024,
    b"\x04\x22\x4d\x18\x60\x50\xfb": 256 * 1024,
    b"\x04\x22\x4d\x18\x60\x60\x51": 1024 * 1024,
    b"\x04\x22\x4d\x18\x60\x70\x73": 4 * 1024 * 1024,
}
#: How the library words a buffer that is too small (it has one error for everything).
_BUFFER_FULL = "whole buffer"


class UnpackedTooLarge(CorruptBatch):
    """The block unpacks to more than the caller allows."""


class Codec(enum.IntEnum):
    """Bits 0-2 of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


def most_unpacked(codec: int, packed_bytes: int) -> int:
    """Return the maximum size of a block of ``packed_bytes`` when it is unpacked."""
    if codec == Codec.NONE:
        return packed_bytes
    return min(UNPACKED_BYTES_MAX, packed_bytes * _EXPANSION_MAX[codec])


_MODULES: dict[int, Any] = {
    Codec.GZIP: cramjam.gzip,
    Codec.LZ4: cramjam.lz4,
    Codec.ZSTD: cramjam.zstd,
}


def compress(codec: int, data: bytes) -> bytes:
    """Pack ``data`` as one block."""
    kind = Codec(codec)
    if kind is Codec.NONE:
        return data
    if kind is Codec.SNAPPY:
        return _compress_xerial(data)
    if kind is Codec.LZ4:
        # Java clients refuse frames with linked blocks.
        compressor = cramjam.lz4.Compressor(block_linked=False)
        compressor.compress(data)
        return bytes(compressor.finish())
    return bytes(_MODULES[kind].compress(data))


def decompress(codec: int, data: bytes, *, limit_bytes: int = UNPACKED_BYTES_MAX) -> bytes:
    """Decompress the records of a batch.

    Raises :class:`CorruptBatch` if the block cannot be decompressed, and :class:`UnpackedTooLarge`
    if the result is larger than ``limit_bytes``.
    """
    try:
        kind = Codec(codec)
    except ValueError as error:
        raise CorruptBatch(f"unknown compression codec {codec}") from error
    if kind is Codec.NONE:
        return data
    if kind is not Codec.SNAPPY:
        return _decompress_bounded(kind, data, limit_bytes)
    try:
        return _decompress_snappy(data, limit_bytes)
    except (cramjam.DecompressionError, struct.error) as error:
        raise CorruptBatch(_cannot_be_unpacked(codec, error)) from error


def decompress_into(codec: int, data: bytes, buffer: memoryview) -> int | None:
    """Decompress the records of a batch to the start of ``buffer``, and return their size.

    Returns None if the buffer is too small. Raises :class:`CorruptBatch` as :func:`decompress`.
    """
    if codec == Codec.LZ4:
        written = _single_lz4_block(data, buffer)
        if written is not None:
            return written
    # These codecs write to the buffer themselves, which saves the copies of a whole result.
    module = _MODULES.get(codec)
    if module is not None:
        try:
            return int(module.decompress_into(data, buffer))
        except cramjam.DecompressionError as error:
            if _BUFFER_FULL in str(error):
                return None
            raise CorruptBatch(_cannot_be_unpacked(codec, error)) from error
    try:
        unpacked = decompress(codec, data, limit_bytes=len(buffer))
    except UnpackedTooLarge:
        return None
    if len(unpacked) > len(buffer):
        return None
    buffer[: len(unpacked)] = unpacked
    return len(unpacked)


def _single_lz4_block(data: bytes, buffer: memoryview) -> int | None:
    """Decompress a frame of one block to ``buffer`` and return its size, None for any other frame.

    Most producers' batches are such frames. The general decoder spends a third of its time on
    preparing itself for the next block.
    """
    # The header, the size of the only block, and behind that block the end mark.
    block_max = _LZ4_PLAIN.get(data[:7])
    if block_max is None or data[-4:] != bytes(4):
        return None
    if int.from_bytes(data[7:11], "little") != len(data) - 15:
        return None
    room = min(block_max, len(buffer))
    try:
        return int(cramjam.lz4.decompress_block_into(data[11:-4], buffer, output_len=room))
    # The general decoder says what is wrong, or that the buffer is too small.
    except cramjam.DecompressionError:
        return None


def _decompress_bounded(kind: Codec, data: bytes, limit_bytes: int) -> bytes:
    """Decompress into a buffer that doubles until the block fits, up to the limit.

    A decompression bomb therefore takes no more memory than the limit.
    """
    size = min(limit_bytes, max(_FIRST_GUESS_BYTES, 4 * len(data)))
    while True:
        buffer = memoryview(bytearray(size))
        written = decompress_into(kind, data, buffer)
        if written is not None:
            return bytes(buffer[:written])
        if size >= limit_bytes:
            raise UnpackedTooLarge(_too_large(kind, limit_bytes))
        size = min(limit_bytes, size * 2)


def _cannot_be_unpacked(codec: int, error: Exception) -> str:
    return f"{Codec(codec).name.lower()} block cannot be unpacked: {error}"


def _too_large(kind: Codec, limit_bytes: int) -> str:
    return f"a {kind.name.lower()} block unpacks to more than {limit_bytes} bytes"


def _compress_xerial(data: bytes) -> bytes:
    out = bytearray(_XERIAL_HEADER)
    for start in range(0, len(data), _XERIAL_CHUNK_BYTES):
        chunk = bytes(cramjam.snappy.compress_raw(data[start : start + _XERIAL_CHUNK_BYTES]))
        out += struct.pack(">i", len(chunk)) + chunk
    return bytes(out)


def _decompress_snappy(data: bytes, limit_bytes: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _decompress_raw_snappy(data, limit_bytes)
    out = bytearray()
    position = len(_XERIAL_HEADER)
    while position < len(data):
        (size,) = struct.unpack_from(">i", data, position)
        position += 4
        if size < 0 or position + size > len(data):
            raise CorruptBatch(f"a snappy chunk of {size} bytes ends outside its block")
        out += _decompress_raw_snappy(data[position : position + size], limit_bytes - len(out))
        position += size
    return bytes(out)


def _decompress_raw_snappy(chunk: bytes, limit_bytes: int) -> bytes:
    if cramjam.snappy.decompress_raw_len(chunk) > limit_bytes:
        raise UnpackedTooLarge(_too_large(Codec.SNAPPY, limit_bytes))
    return bytes(cramjam.snappy.decompress_raw(chunk))
