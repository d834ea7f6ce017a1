"""Records of the topic: keys, nulls, headers, every codec, timestamps out of order, and
committed and aborted transactions between records outside transactions.
"""

from collections.abc import Callable

from confluent_kafka import Producer

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
PARTITIONS = 4
BLOCK = 500
#: Of each group of this number of blocks, the first and the fourth are one transaction.
_CYCLE, _SECOND = 10, 3
_BASE_MS = 1_700_000_000_000
#: How far times are out of order, at most.
_SKEW_MS = 3_600_000
_LARGE = 50_000
_WORDS = b"".join(b"%d sold to %x for %d " % (n, n * 2654435761 % 2**32, n) for n in range(4096))


class RecordWriter:
    """Producers of each codec, plain ones and transactional ones."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        self._topic = topic
        common = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 20,
            "queue.buffering.max.messages": 200_000,
            "enable.idempotence": True,
            "message.timeout.ms": 120_000,
            "log_level": 2,  # brokers go down here, and each client would tell
        }
        self._plain = [Producer({**common, "compression.type": codec}) for codec in CODECS]
        self._transactional = []
        for codec in CODECS:
            name = {"transactional.id": f"{topic}-{codec}", "compression.type": codec}
            producer = Producer({**common, **name, "transaction.timeout.ms": 120_000})
            producer.init_transactions(120)
            self._transactional.append(producer)
        self._next = 0

    def write(self, count: int, say: Callable[[int], None] = lambda _: None) -> None:
        """Write about ``count`` more records, including those of aborted transactions, and wait for
        all acknowledgements.

        ``say`` receives the number from time to time.
        """
        cycles = max(1, round(count / (BLOCK * _CYCLE)))
        for cycle in range(cycles):
            self._cycle(self._next // (BLOCK * _CYCLE))
            say((cycle + 1) * BLOCK * _CYCLE)
        for producer in self._plain:
            if producer.flush(300):
                raise SystemExit("not every record was acknowledged")

    def _cycle(self, number: int) -> None:
        transactional = self._transactional[number % len(CODECS)]
        transactional.begin_transaction()
        for block in range(_CYCLE):
            inside = block in {0, _SECOND}
            plain = self._plain[(number + block) % len(CODECS)]
            self._block(transactional if inside else plain)
            if block == _SECOND:
                if number % 3:
                    transactional.commit_transaction(300)
                else:
                    # Without it librdkafka may abort before the answer to AddPartitionsToTxn: it
                    # then ends what no coordinator knows of (INVALID_TXN_STATE, fatal), or takes it
                    # that there is nothing to end, and the open transaction times out and fences it
                    # (librdkafka, issue 4849).
                    transactional.flush(300)
                    transactional.abort_transaction(300)

    def _block(self, producer: Producer) -> None:
        for number in range(self._next, self._next + BLOCK):
            while True:
                try:
                    producer.produce(self._topic, **record(number))
                    break
                except BufferError:
                    producer.poll(0.1)
        producer.poll(0)
        self._next += BLOCK


def record(number: int) -> dict[str, object]:
    """Return the arguments for :meth:`Producer.produce`."""
    # Sizes, nulls, headers and times follow from the number, so a record can be made again.
    at, size = number * 7 % 30_000, number % 211
    value: bytes | None = b"" if number % 13 == 0 else b"%d " % number + _WORDS[at : at + size]
    if number % 11 == 0:
        value = None
    # Now and then a value that is larger than a batch.
    elif number % _LARGE == 1:
        value = _WORDS[:80_000]
    headers: list[tuple[str, bytes | None]] = []
    if number % 5 == 0:
        headers = [("n", b"%d" % number), ("n", b"again"), ("nothing", None), ("größe", b"")]
    return {
        "key": None if number % 7 == 0 else b"key %d" % (number % 1000),
        "value": value,
        "headers": headers,
        "partition": number % PARTITIONS,
        "timestamp": _BASE_MS + number // 10 + number * 2654435761 % (2 * _SKEW_MS) - _SKEW_MS,
    }
