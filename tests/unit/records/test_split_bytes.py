"""Record batches in several buffers are read, checked and written like joined ones."""

import pytest
from kio.schema.errors import ErrorCode

from tidemark.records.batch import CorruptBatch, iter_headers
from tidemark.records.builder import Record, build_batch
from tidemark.records.split_bytes import SplitBytes
from tidemark.wire.framing import encode_response_pieces
from tidemark_broker.api.records.fetch import API
from tidemark_broker.api.records.fetch_response import (
    FetchableTopicResponse,
    FetchResponse,
    PartitionData,
)

LOG = b"".join(
    build_batch([Record(None, bytes([number]) * 30, (), 0)] * 2, base_offset=2 * number)
    for number in range(6)
)
SKIPPED = 17


def split(size: int, log: bytes = LOG) -> SplitBytes:
    """Return the log in buffers of ``size`` bytes, behind bytes that are not part of it."""
    whole = bytes(SKIPPED) + log + b"behind"
    buffers = [whole[begin : begin + size] for begin in range(0, len(whole), size)]
    return SplitBytes(buffers, SKIPPED, SKIPPED + len(log))


@pytest.mark.parametrize("size", [1, 7, 60, 61, 100, len(LOG), 10_000])
def test_batches_are_those_of_the_joined_bytes(size: int) -> None:
    data = split(size)
    assert (len(data), bytes(data), b"".join(data.parts())) == (len(LOG), LOG, LOG)
    assert list(data.headers()) == list(iter_headers(LOG))
    for position, header in data.headers():
        data.check_crc(position, header)
    # A batch that the end cuts is left out.
    assert list(split(size, LOG[:-1]).headers()) == list(iter_headers(LOG))[:-1]


@pytest.mark.parametrize("size", [7, 100, 10_000])
def test_each_changed_byte_of_the_records_is_found(size: int) -> None:
    (position, header), *_ = list(iter_headers(LOG))[2:]
    for at in range(position + 21, position + header.size_bytes):
        log = bytearray(LOG)
        log[at] ^= 1
        with pytest.raises(CorruptBatch, match="CRC of the batch at offset 4 is"):
            split(size, bytes(log)).check_crc(position, header)


def test_a_small_part_does_not_keep_large_buffers() -> None:
    data = split(300)
    assert data.first(100) == LOG[:100]
    most = data.first(len(LOG) - 1)
    assert isinstance(most, SplitBytes)
    assert bytes(most) == LOG[:-1]
    assert len(most) < most.memory_bytes < 2 * len(most)
    # Buffers behind the part are not kept either.
    part = data.first(300 - SKIPPED)
    assert isinstance(part, SplitBytes)
    assert [len(view) for view in part.parts()] == [300 - SKIPPED]
    # Two thirds of the buffers' memory are enough, and less is copied.
    assert isinstance(data.first(200), SplitBytes)
    assert data.first(199) == LOG[:199]


def test_a_response_is_the_same_with_split_records() -> None:
    def encoded(records: bytes | SplitBytes) -> bytes:
        partition = PartitionData(
            partition_index=0,
            error_code=ErrorCode.none,
            high_watermark=1,
            last_stable_offset=1,
            log_start_offset=0,
            aborted_transactions=None,
            records=records,
        )
        topic = FetchableTopicResponse(topic="t", topic_id=None, partitions=(partition,))
        response = FetchResponse(error_code=ErrorCode.none, responses=(topic,))
        return b"".join(encode_response_pieces(response, 1, API.answer_type(12)))

    assert encoded(split(100)) == encoded(LOG)
