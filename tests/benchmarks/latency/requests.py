"""The open-loop client and its result: percentiles, the rate that was sustained, slow requests.

The client is ``go/main.go``. It sends each record at its scheduled time, whether or not earlier
ones are acknowledged, and a record's latency starts at that time. A delay of the client itself
therefore counts, and is reported as ``client p99 ms``.
"""

import json
import math
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.benchmarks.load import RECORD_BYTES
from tests.benchmarks.results import Figures
from tests.suites.packages import go_program

MODULE = Path(__file__).with_name("go")
#: Producers, each with its own connections: at most a thousand records a second of each.
_CONNECTIONS_MIN, _RATE_OF_CONNECTION = 6, 1000
#: Time for the last acknowledgements after the schedule.
DRAIN_S = 20
#: A rate below this share of the schedule's was not sustained.
_SUSTAINED = 0.97
#: Share of the requests whose stalls are looked for, and their least number.
_SLOW_SHARE, _SLOW_MIN = 0.001, 10
_NS_PER_MS = 1e6
SHARES = (50, 99, 99.9)


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenLoop:
    """A schedule of single records.

    ``linger_ms`` 0: one record in each request, any number of requests in flight. Otherwise a
    producer with franz-go's defaults (idempotent, five requests in flight). The first ``warm_s``
    seconds are not counted.
    """

    rate: int
    seconds: float
    warm_s: float
    partitions: int
    linger_ms: int

    @property
    def connections(self) -> int:
        """Number of producers: one for each partition at least, and for each 1,000/s."""
        return max(_CONNECTIONS_MIN, self.rate // _RATE_OF_CONNECTION)


@dataclass(frozen=True, slots=True)
class Requests:
    """Times of all requests after the warm-up, in nanoseconds of CLOCK_MONOTONIC.

    ``acknowledged``: 0 if there was no acknowledgement. ``sent``: when the client's library got it.
    """

    due: "np.ndarray[Any, Any]"
    sent: "np.ndarray[Any, Any]"
    acknowledged: "np.ndarray[Any, Any]"

    @classmethod
    def read(cls, path: Path, warm_s: float) -> "Requests":
        """Read the client's file. ``warm_s``: duration that is not counted, from the first."""
        times = np.fromfile(path, dtype="<i8").reshape(-1, 3)
        counted = times[times[:, 0] >= times[0, 0] + int(warm_s * 1e9)]
        return cls(*counted.T)

    @property
    def failed(self) -> int:
        """Number of requests without an acknowledgement."""
        return int((self.acknowledged == 0).sum())

    @property
    def latencies_ns(self) -> "np.ndarray[Any, Any]":
        """One without an acknowledgement took longer than any other could."""
        latest = self.due[-1] + int(DRAIN_S * 1e9)
        return np.where(self.acknowledged == 0, latest, self.acknowledged) - self.due

    @property
    def window(self) -> tuple[int, int]:
        """From the first scheduled send to the last acknowledgement."""
        return int(self.due[0]), int(max(self.due[-1], self.acknowledged.max()))

    def sustained_rate(self) -> float:
        """Acknowledgements a second, until the last one."""
        began, ended = self.window
        return (len(self.due) - self.failed) / max(ended - began, 1) * 1e9

    def is_sustained(self, rate: int) -> bool:
        """Whether the brokers kept up with the schedule and acknowledged every request."""
        return not self.failed and self.sustained_rate() >= _SUSTAINED * rate

    def slow(self) -> list[tuple[int, int]]:
        """Return (due, acknowledged) of the slowest thousandth, and of ten at least."""
        latencies = self.latencies_ns
        count = min(len(latencies), max(_SLOW_MIN, math.ceil(len(latencies) * _SLOW_SHARE)))
        chosen = np.sort(np.argpartition(latencies, -count)[-count:])
        ends = self.due + latencies
        return [(int(self.due[index]), int(ends[index])) for index in chosen]

    def figures(self) -> dict[str, float]:
        """Return milliseconds of the percentiles and of the slowest, and the sustained rate."""
        taken = np.sort(self.latencies_ns) / _NS_PER_MS
        lag = np.sort(self.sent - self.due) / _NS_PER_MS
        return {
            **{f"p{share:g} ms": percentile(taken, share) for share in SHARES},
            "max ms": float(taken[-1]),
            "rate/s": self.sustained_rate(),
            "failed": float(self.failed),
            "client p99 ms": percentile(lag, 99),
        }


def percentile(ordered: "np.ndarray[Any, Any]", share: float) -> float:
    """Return the smallest value that ``share`` percent of the values do not exceed."""
    # Rounded, because 99.9 / 100 * 1000 is more than 999 in floating point.
    rank = math.ceil(round(share * len(ordered) / 100, 6))
    return float(ordered[max(rank, 1) - 1])


def run(loop: OpenLoop, bootstrap: str, topic: str) -> tuple[Requests, Figures]:
    """Run the client; return the requests and the client's own figures.

    Raises CalledProcessError, or OSError if the brokers rejected records.
    """
    program = go_program(MODULE)
    # The times of all requests are too long for a pipe, so the client writes a file.
    with tempfile.NamedTemporaryFile(prefix="tidemark-latency-") as out:
        done = subprocess.run(
            [
                *(str(program), "-bootstrap", bootstrap, "-topic", topic, "-out", out.name),
                *("-partitions", str(loop.partitions), "-rate", str(loop.rate)),
                *("-seconds", str(loop.warm_s + loop.seconds)),
                *("-connections", str(loop.connections), "-bytes", str(RECORD_BYTES)),
                *("-linger", f"{loop.linger_ms}ms", "-drain", f"{DRAIN_S}s"),
            ],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
        )
        answer = json.loads(done.stdout)
        requests = Requests.read(Path(out.name), loop.warm_s)
    # A rejected record is a failed measure. One that is only late counts as slow.
    if answer["error"]:
        raise OSError(f"{requests.failed} records failed: {answer['error']}")
    # The client counts requests from the first record of the warm-up.
    records = loop.rate * (loop.warm_s + loop.seconds)
    return requests, {
        "records/request": records / max(answer["requests"], 1),
        "client CPU-s": answer["cpu_s"],
    }
