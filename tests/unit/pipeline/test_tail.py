"""Reactions of the tail reader to answers that no sound broker gives."""

import subprocess
import sys

import pytest
from kio.schema.fetch.v12.response import FetchableTopicResponse, FetchResponse

from tidemark.kafka_client.blocking_client import only_partition
from tidemark.kafka_client.errors import Unreachable
from tidemark.records.builder import Record, build_batch
from tidemark.wire.framing import decode
from tidemark_pipeline.errors import CorruptData
from tidemark_pipeline.read.task_execution import next_position


def _batches(*base_offsets: int) -> bytes:
    return b"".join(build_batch([Record(b"k", b"v")], base_offset=base) for base in base_offsets)


def test_a_read_continues_after_the_last_complete_batch() -> None:
    assert next_position(_batches(4, 5, 6)[:-1], "t-0", 4) == 6


@pytest.mark.parametrize("data", [b"", _batches(6)[:-1], _batches(6), _batches(6, 2)])
def test_a_read_always_advances(data: bytes) -> None:
    with pytest.raises(Unreachable, match="t-0: the leader returned nothing at offset 7"):
        next_position(data, "t-0", 7)


def test_malformed_batch_is_reported_with_its_place() -> None:
    data = bytearray(_batches(4, 5))
    # Byte 16 is the magic, of which only 2 is known.
    data[16] = 1
    with pytest.raises(CorruptData, match=r"t-0, fetched at offset 4 .*magic 1"):
        next_position(bytes(data), "t-0", 4)


@pytest.mark.parametrize("topics", [b"\x01", b"\x02\x02t\x01\x00"], ids=["topics", "partitions"])
def test_an_answer_without_the_partition_is_an_error_with_its_name(topics: bytes) -> None:
    answer = decode(FetchResponse, bytes(10) + topics + b"\x00")
    assert all(isinstance(topic, FetchableTopicResponse) for topic in answer.responses)
    with pytest.raises(Unreachable, match="t-0: the leader's answer is empty"):
        only_partition(answer.responses, "t-0")


def test_client_runs_without_sparks_libraries() -> None:
    """The demo and the tests of stock clients run where these are not installed."""
    heavy = "{'numba', 'numpy', 'pyarrow', 'pyspark'}"
    code = (
        f"import sys, tidemark.kafka_client.blocking_client; assert not {heavy} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
