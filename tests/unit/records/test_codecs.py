"""Compression codecs: round trips, damage, and a limit that decompression bombs cannot exceed."""

import cramjam
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.records import codecs
from tidemark.records.batch import CorruptBatch
from tidemark.records.builder import Record, build_batch
from tidemark.records.codecs import Codec, compress, decompress, decompress_into
from tidemark.records.decode import decode_records
from tidemark.records.varint import VarintError, read_varint, read_varlong, write_varint

PACKING = [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD]


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("size", [0, 1, 32 * 1024, 400_000])
def test_round_trip(codec: Codec, size: int) -> None:
    data = b"abcdefgh" * (size // 8) + b"x" * (size % 8)
    assert decompress(codec, compress(codec, data)) == data


def test_lz4_blocks_are_independent() -> None:
    """Bit 5 of the frame's flags. Kafka's Java reader accepts nothing else."""
    assert compress(Codec.LZ4, bytes(200_000))[4] & 0x20


@pytest.mark.parametrize("codec", PACKING)
def test_a_bomb_is_rejected_at_the_limit(codec: Codec) -> None:
    packed = compress(codec, bytes(2_000_000))
    assert len(decompress(codec, packed, limit_bytes=2_000_000)) == 2_000_000
    with pytest.raises(CorruptBatch):
        decompress(codec, packed, limit_bytes=1_999_999)


@pytest.mark.parametrize("header", codecs._LZ4_PLAIN)
def test_lz4_frame_of_one_block_is_read_as_the_general_decoder_reads_it(header: bytes) -> None:
    """Most clients write such frames, without checksums of the contents."""
    block_max = codecs._LZ4_PLAIN[header]

    def frame(data: bytes) -> bytes:
        block = bytes(cramjam.lz4.compress_block(data, store_size=False))
        return header + len(block).to_bytes(4, "little") + block + bytes(4)

    for data in (b"x", b"tidemark" * 100, bytes(block_max)):
        buffer = bytearray(len(data))
        assert bytes(cramjam.lz4.decompress(frame(data))) == data
        assert codecs._single_lz4_block(frame(data), memoryview(buffer)) == len(data)
        assert bytes(buffer) == data
        assert decompress(Codec.LZ4, frame(data)) == data
        assert decompress_into(Codec.LZ4, frame(data), memoryview(buffer)[1:]) is None
    # What the general decoder rejects stays rejected: too large a block, and damage.
    good = frame(b"tidemark" * 100)
    for bad in (
        frame(bytes(block_max + 1)),
        good[:-1],
        good[:6] + b"\0" + good[7:],
        good[:11] + b"\xff" * 8 + good[19:],
    ):
        with pytest.raises(CorruptBatch):
            decompress(Codec.LZ4, bad)


@pytest.mark.parametrize("codec", PACKING)
def test_damage_raises_an_error(codec: Codec) -> None:
    packed = compress(codec, b"some text that is long enough to be packed" * 20)
    for broken in (packed[:-3], packed[: len(packed) // 2], b"\xff" * 40):
        with pytest.raises(CorruptBatch):
            decompress(codec, broken)
        with pytest.raises(CorruptBatch):
            decompress_into(codec, broken, memoryview(bytearray(10_000)))


@pytest.mark.parametrize("codec", list(Codec))
@pytest.mark.parametrize("data", [b"", b"x", b"abcdefgh" * 50_000])
def test_result_is_written_to_a_buffer_that_has_room(codec: Codec, data: bytes) -> None:
    packed = compress(codec, data)
    for room in (len(data), len(data) + 10):
        buffer = bytearray(room)
        assert decompress_into(codec, packed, memoryview(buffer)) == len(data)
        assert buffer[: len(data)] == data
    if data:
        assert decompress_into(codec, packed, memoryview(bytearray(len(data) - 1))) is None
        assert decompress_into(codec, packed, memoryview(bytearray())) is None


def test_an_unknown_codec_is_named() -> None:
    with pytest.raises(CorruptBatch, match="codec 6"):
        decompress(6, b"")


@given(st.integers(-(2**63), 2**63 - 1))
def test_varlongs_round_trip(value: int) -> None:
    out = bytearray(b"\x07")
    write_varint(out, value)
    assert len(out) <= 11
    assert read_varlong(out, 1) == (value, len(out))
    with pytest.raises(VarintError):
        read_varlong(out[:-1], 1)


@given(st.integers(-(2**31), 2**31 - 1))
def test_varints_round_trip(value: int) -> None:
    out = bytearray(b"\x07")
    write_varint(out, value)
    assert len(out) <= 6
    assert read_varint(out, 1) == (value, len(out))
    with pytest.raises(VarintError):
        read_varint(out[:-1], 1)


@pytest.mark.parametrize("value", [0, -1, 63, -64, 64, -65, 8191, -8192, 8192, -8193])
@pytest.mark.parametrize("behind", [b"", b"\x00", b"\x80", b"\xff\xff"])
def test_bytes_after_a_varint_are_not_read(value: int, behind: bytes) -> None:
    out = bytearray(b"\x07")
    write_varint(out, value)
    for read in (read_varint, read_varlong):
        assert read(bytes(out) + behind, 1) == (value, len(out))


def test_excess_bits_of_a_varint_are_ignored_as_in_kafka() -> None:
    # Kafka's ByteUtils reads five bytes and drops bits beyond 32.
    assert read_varint(b"\xff\xff\xff\xff\x7f", 0) == (-(2**31), 5)
    assert read_varint(b"\x82\x80\x80\x80\x70", 0) == (1, 5)
    assert read_varlong(b"\x82" + b"\x80" * 8 + b"\x7e", 0) == (1, 10)
    with pytest.raises(VarintError):
        read_varint(b"\x80" * 5 + b"\x00", 0)
    with pytest.raises(VarintError):
        read_varlong(b"\x80" * 10 + b"\x00", 0)


@given(st.binary(max_size=60))
def test_garbage_is_an_error_or_one_valid_record(garbage: bytes) -> None:
    batch = bytearray(build_batch([Record(b"k", b"v")]))
    # A valid header for one record, with the length of the garbage.
    batch[8:12] = (49 + len(garbage)).to_bytes(4, "big")
    try:
        records = list(decode_records(bytes(batch[:61]) + garbage))
    except CorruptBatch:
        return
    assert len(records) == 1
