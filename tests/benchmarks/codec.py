"""Cost of reading and writing messages, with our codec and with kio's.

    python -m tests.benchmarks.codec

Processor time of one thread for a message, both sides in turn and the least of five. Requests are
read and answers are written as by the broker: with its own classes. kio's reader is native code,
and trusts every length. A walk over all lengths before it cost about 4.5 us for a Produce request.
"""

import io
import time
import uuid
from collections.abc import Callable
from typing import Any

from kio.schema.errors import ErrorCode
from kio.serial import entity_reader, entity_writer

from tests.unit.api import api_requests as kafka
from tidemark.wire.codec import Pieces, codec_of
from tidemark.wire.framing import decode, encode
from tidemark_broker.api.records import fetch, produce
from tidemark_broker.api.table import Api
from tidemark_broker.api.topics import metadata

_ROUNDS = 5
_SECONDS = 0.1
_ID = uuid.UUID(int=7)
_RECORD = kafka.batch(b"x" * 100)


def main() -> None:
    """Print a line for each message and direction."""
    print(f"{'message':<46}{'bytes':>7}{'ours us':>9}{'kio us':>9}{'ratio':>7}")
    for version in (9, 13):
        request = kafka.produce(version, "orders", _RECORD, topic_id=_ID)
        answer = _answer(0, version, "partition_responses", [_produced(version)])
        _measure(produce.API, version, "1 partition", request, answer)
    for count in (1, 50):
        request = kafka.fetch(13, "orders", *range(count), topic_id=_ID)
        answer = _answer(1, 13, "partitions", [_fetched(13)] * count)
        _measure(
            fetch.API, 13, "1 partition" if count == 1 else f"{count} partitions", request, answer
        )
    topics = tuple((f"orders-{number}", None) for number in range(100))
    answer = kafka.fit(
        kafka.answer_type(3, 12), throttle_time=kafka.duration(0), brokers=(), cluster_id="c",
        controller_id=1, topics=(_described(12),) * 100,
    )  # fmt: skip
    _measure(metadata.API, 12, "100 topics", kafka.metadata(12, topics), answer)


def _produced(version: int) -> Any:
    """Return a partition of a Produce response."""
    return kafka.answer_part(
        0, version, "PartitionProduceResponse", index=3, error_code=ErrorCode.none, base_offset=70,
        log_append_time=None, log_start_offset=0, record_errors=(), error_message=None,
    )  # fmt: skip


def _fetched(version: int) -> Any:
    """Return a partition of a Fetch response."""
    return kafka.answer_part(
        1, version, "PartitionData", partition_index=3, error_code=ErrorCode.none,
        high_watermark=70, last_stable_offset=70, log_start_offset=0, aborted_transactions=None,
        preferred_read_replica=-1, records=_RECORD,
    )  # fmt: skip


def _described(version: int) -> Any:
    """Return a topic of one partition in a Metadata response."""
    partition = kafka.answer_part(
        3, version, "MetadataResponsePartition", error_code=ErrorCode.none, partition_index=0,
        leader_id=1, leader_epoch=4, replica_nodes=(1, 2, 3), isr_nodes=(1, 2, 3),
        offline_replicas=(),
    )  # fmt: skip
    return kafka.answer_part(
        3, version, "MetadataResponseTopic", error_code=ErrorCode.none, name="orders", topic_id=_ID,
        is_internal=False, partitions=(partition,), topic_authorized_operations=-(2**31),
    )  # fmt: skip


def _answer(key: int, version: int, array: str, partitions: list[Any]) -> Any:
    """Return a response with one topic."""
    kind = {0: "TopicProduceResponse", 1: "FetchableTopicResponse"}[key]
    fields = {"name": "orders", "topic": "orders", "topic_id": _ID, array: tuple(partitions)}
    return kafka.fit(
        kafka.answer_type(key, version), throttle_time=kafka.duration(0), session_id=0,
        error_code=ErrorCode.none, responses=(kafka.answer_part(key, version, kind, **fields),),
    )  # fmt: skip


def _measure(api: Api[Any, Any], version: int, size: str, request: Any, answer: Any) -> None:
    """Print the costs of both messages."""
    for message, kind, title in (
        (request, api.request_type(version), "request"),
        (answer, api.answer_type(version), "response"),
    ):
        # The broker's classes have the same fields as kio's.
        data = encode(message)
        codec, read, write = codec_of(kind), entity_reader(kind), entity_writer(kind)
        message = decode(kind, data)

        def written(message: Any = message, codec: Any = codec) -> Any:
            pieces = Pieces()
            codec.write(message, pieces)
            return pieces.joined()

        def written_by_kio(message: Any = message, write: Any = write) -> Any:
            out = io.BytesIO()
            write(out, message)
            return out.getvalue()

        # Both sides start with the same bytes, or with the same message.
        name = f"{api.name} v{version} {title}, {size}"
        _compare(
            f"read {name}",
            data,
            lambda k=kind, d=data: decode(k, d),
            lambda r=read, d=data: r(d, 0),
        )
        _compare(f"write {name}", data, written, written_by_kio)


def _compare(name: str, data: bytes, ours: Callable[[], object], kio: Callable[[], object]) -> None:
    rounds = [(_cpu_us(ours), _cpu_us(kio)) for _ in range(_ROUNDS)]
    mine, other = min(cost for cost, _ in rounds), min(cost for _, cost in rounds)
    print(f"{name:<46}{len(data):>7}{mine:>9.2f}{other:>9.2f}{other / mine:>7.1f}")


def _cpu_us(work: Callable[[], object]) -> float:
    """Return the processor time of one call, the mean over a tenth of a second."""
    calls, began_s = 0, time.thread_time()
    while (took_s := time.thread_time() - began_s) < _SECONDS:
        for _ in range(20):
            work()
        calls += 20
    return took_s / calls * 1e6


if __name__ == "__main__":
    main()
