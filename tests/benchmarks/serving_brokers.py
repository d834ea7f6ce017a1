"""``make bench-cold-brokers``: cold reads of one topic by 1, 2 and 4 brokers, from a distant store.

Each reader has a partition. Its replicas are on all brokers, and leaders spread the readers over
them. Every request to the store waits for 20 ms in a proxy. The cores of this machine are shared by
all brokers, the clients, the store and the proxy, so the rate that is measured says nothing about
brokers on machines of their own. The capacity does: the bytes that all brokers serve while the
busiest one uses a second of its core, a part of which it uses without any reader, too.

Brokers first read another topic, so that no figure contains what they load once at the first use.
"""

import argparse
import asyncio
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self

from tests.benchmarks import load_process
from tests.benchmarks.cold_reads import ColdSizes, filled
from tests.benchmarks.load import RECORD_BYTES
from tests.benchmarks.processes import cpu_seconds
from tests.benchmarks.results import Figures, Results, one_line
from tests.benchmarks.sides import OURS, BenchmarkSide, start_tidemark

LATENCY_S = 0.02
BROKERS = (1, 2, 4)
READERS = 12
_IDLE_S = 5.0
_PIECE_BYTES = 1 << 18
#: Pieces of one connection on their way. More of them wait in the sockets.
_PIECES = 64
#: Figures that are compared with those of one broker.
_TIMES = {
    "MB/CPU-s with idle": "times one broker, with idle",
    "capacity MB/CPU-s": "times one broker",
}


class DistantStore:
    """Proxy on loopback that delivers everything to a server ``latency_s`` later, in its order.

    Responses are not delayed, so a request takes that much longer whatever the size of its answer.
    """

    def __init__(self, latency_s: float) -> None:
        self._latency_s = latency_s
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def before(self, endpoint: str) -> str:
        """Listen for connections to this endpoint; return the one to use instead."""
        host, _, port = endpoint.removeprefix("http://").rpartition(":")

        async def serve() -> int:
            async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                async with _closed(writer):
                    from_server, to_server = await asyncio.open_connection(host, int(port))
                    async with _closed(to_server), asyncio.TaskGroup() as group:
                        group.create_task(self._delayed(reader, to_server))
                        group.create_task(_copied(from_server, writer))

            server = await asyncio.start_server(connected, "127.0.0.1", 0)
            return int(server.sockets[0].getsockname()[1])

        return f"http://127.0.0.1:{asyncio.run_coroutine_threadsafe(serve(), self._loop).result()}"

    async def _delayed(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Write each piece ``latency_s`` after it came, while others arrive."""
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_PIECES)

        async def received() -> None:
            while piece := await reader.read(_PIECE_BYTES):
                await pieces.put((self._loop.time() + self._latency_s, piece))
            await pieces.put((0, b""))

        async with asyncio.TaskGroup() as group:
            group.create_task(received())
            while True:
                due, piece = await pieces.get()
                await asyncio.sleep(due - self._loop.time())
                if not piece:
                    break
                writer.write(piece)
                await writer.drain()
        writer.write_eof()


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(_PIECE_BYTES):
        writer.write(piece)
        await writer.drain()
    writer.write_eof()


@asynccontextmanager
async def _closed(writer: asyncio.StreamWriter) -> AsyncIterator[None]:
    """Close the connection at the end, or when either peer has closed its own."""
    try:
        yield
    except* OSError:
        pass
    finally:
        writer.close()


def taken(folder: Path, brokers: int, sizes: ColdSizes) -> Figures:
    """Start ``brokers`` brokers, fill a topic, and read it once from the tier."""
    with DistantStore(LATENCY_S) as distant:
        side = start_tidemark(
            folder,
            brokers,
            tiered=True,
            entries={"tidemark.remote.fetch.replicas": "any"},
            store_proxy=distant.before,
        )
        try:
            # Modules are imported, and threads and connections begin, with the first readers.
            small = replace(sizes, megabytes=sizes.megabytes // 4)
            load_process.run(filled(side, READERS, small, tiered=True, replicas=brokers))
            cold = filled(side, READERS, sizes, tiered=True, replicas=brokers)
            before = _cpu_s(side)
            time.sleep(_IDLE_S)
            idle = [used / _IDLE_S for used in _cpu_s(side, before)]
            before = _cpu_s(side)
            answer = load_process.run(cold)
            used = _cpu_s(side, before)
        finally:
            side.stop()
    megabytes = answer["records"] * RECORD_BYTES / 1e6
    return figures(used, idle, megabytes, answer["ended"] - answer["began"])


def _cpu_s(side: BenchmarkSide, since: Sequence[float] | None = None) -> Sequence[float]:
    """Return the processor time of each broker, in seconds, ``since`` an earlier result."""
    now = [cpu_seconds(pid) for pid in side.pids()]
    return [used - was for used, was in zip(now, since or [0.0] * len(now), strict=True)]


def figures(
    used_s: Sequence[float], idle: Sequence[float], megabytes: float, took_s: float
) -> Figures:
    """Return the figures of one read.

    ``used_s``: processor time of each broker; ``idle``: the share of a core that it uses without
    readers.
    """
    # The longer a run takes on shared cores, the more idle time it contains. A broker that is
    # saturated uses its idle share, and reads in the rest of its core.
    reads = [used - share * took_s for used, share in zip(used_s, idle, strict=True)]
    capacities = [
        (1 - share) * megabytes / read for read, share in zip(reads, idle, strict=True) if read > 0
    ]
    return {
        "MB/s": megabytes / took_s,
        "all brokers CPU-s/GB": sum(used_s) / megabytes * 1e3,
        "of it idle": (sum(used_s) - sum(reads)) / megabytes * 1e3,
        "busiest broker CPU-s/GB": max(used_s) / megabytes * 1e3,
        "MB/CPU-s with idle": megabytes / max(used_s),
        "capacity MB/CPU-s": min(capacities),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Take all sizes in turn and print capacities as multiples of one broker's."""
    parser = argparse.ArgumentParser(prog="make bench-cold-brokers", description=__doc__)
    parser.add_argument("--rounds", type=int, default=ColdSizes().rounds)
    parser.add_argument("--megabytes", type=int, default=ColdSizes().megabytes)
    asked = parser.parse_args(arguments)
    sizes = ColdSizes(rounds=asked.rounds, megabytes=asked.megabytes)
    setting = {"megabytes": sizes.megabytes, "latency_ms": LATENCY_S * 1e3, "readers": READERS}
    results = Results(benchmark="cold-brokers", rounds=sizes.rounds, setting=setting)
    print(f"{sizes.rounds} rounds, {sizes.megabytes} MB; results in {results.path()}", flush=True)
    for number in range(1, sizes.rounds + 1):
        found: dict[int, Mapping[str, float]] = {}
        # One broker comes first: the others are compared with it.
        for brokers in BROKERS:
            with tempfile.TemporaryDirectory(prefix="tidemark-cold-") as folder:
                found[brokers] = taken(Path(folder), brokers, sizes)
            row = dict(found[brokers])
            for figure, times in _TIMES.items():
                row[times] = row[figure] / found[1][figure]
            name = f"{brokers} broker{'s' if brokers > 1 else ''}"
            results.add(name, OURS, number, row)
            print(f"round {number}  {name}: {one_line(row)}", flush=True)
        results.write()
    print()
    for line in results.lines():
        print(line)


if __name__ == "__main__":
    main()
