"""Cost of reading the records of batches before they are appended, and the share of batches that
are read.

    python -m tests.benchmarks.record_inspection

Processor time of one thread, for each kind of batch: of the checks that every batch has (header and
CRC), of reading its records, and the mean that this adds to a produced batch. Batches of few
records are all read, of the others a sample (``tidemark_broker/log/validation.py``).
"""

import os
import time
from collections.abc import Callable

from tidemark.records.builder import Record, build_batch
from tidemark_broker.log import LogConfig, batch_contents, is_quickly_read
from tidemark_broker.log.validation import ONE_IN, check_leader_batch, one_batch

_NOW_MS = 1_700_000_000_000
_SECONDS = 0.5
#: Records of a batch, bytes of a value, codec.
_BATCHES = ((1, 100, 0), (8, 100, 0), (150, 100, 0), (16, 1024, 0), (1000, 1024, 0), (150, 100, 3))


def _cpu_us(work: Callable[[], object]) -> float:
    """Return the processor time of one call, the mean over half a second."""
    calls, began_s = 0, time.thread_time()
    while time.thread_time() - began_s < _SECONDS:
        work()
        calls += 1
    return (time.thread_time() - began_s) / calls * 1e6


def main() -> None:
    """Print a line for each kind."""
    config = LogConfig()
    print(
        f"{'records':>8}{'bytes':>7}{'codec':>6}{'checks us':>11}{'reading us':>12}{'mean us':>9}"
    )
    for count, size, codec in _BATCHES:
        value = os.urandom(size)
        data = build_batch([Record(b"key", value, (), _NOW_MS)] * count, codec=codec)

        def check(data: bytes = data) -> object:
            return check_leader_batch(one_batch(data), config, _NOW_MS, None)

        checks, reading = _cpu_us(check), _cpu_us(lambda data=data: batch_contents(data))  # type: ignore[misc]
        # Large batches are read once in a while, so only a share of the cost counts.
        mean = reading if is_quickly_read(data) else reading / ONE_IN
        print(f"{count:>8}{size:>7}{codec:>6}{checks:>11.1f}{reading:>12.1f}{mean:>9.1f}")


if __name__ == "__main__":
    main()
