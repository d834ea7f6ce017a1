"""Latency benchmark: percentiles, the schedule, the rate, and what slow requests overlap."""

import asyncio
import functools
import gc
import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import uvloop

from tests.benchmarks.latency import stall_recorder
from tests.benchmarks.latency.requests import OpenLoop, Requests, percentile
from tests.benchmarks.latency.rounds import LATENCY_MEASURES, rotated, summary
from tests.benchmarks.latency.stall_recorder import StallRecorder, label_of
from tests.benchmarks.latency.stalls import (
    StallEvent,
    groups,
    overlapping,
    read_events,
    report,
    write_events,
)
from tests.benchmarks.results import SUSTAINED, Results, sides_of
from tests.benchmarks.sides import KAFKA, OURS

MS = 1_000_000


def requests(*latencies_ms: float, rate: int = 1000) -> Requests:
    """Requests of a schedule; a negative latency: not acknowledged."""
    due = np.arange(len(latencies_ms), dtype=np.int64) * (1_000_000_000 // rate) + 5
    taken = (np.array(latencies_ms) * MS).astype(np.int64)
    return Requests(due, due + MS // 10, np.where(taken < 0, 0, due + taken))


def test_percentile_is_the_smallest_value_that_the_share_does_not_exceed() -> None:
    ordered = np.arange(1.0, 1001.0)
    assert percentile(ordered, 50) == 500
    assert percentile(ordered, 99) == 990
    assert percentile(ordered, 99.9) == 999
    assert percentile(ordered[:1], 99.9) == percentile(ordered[:1], 0) == 1


def test_latency_starts_at_the_scheduled_send() -> None:
    # The client handed over each record 0.1 ms late; the delay is a part of the latency.
    figures = requests(*[2.0] * 999, 50.0).figures()
    assert figures["p50 ms"] == figures["p99.9 ms"] == pytest.approx(2.0)
    assert figures["max ms"] == pytest.approx(50.0)
    assert figures["client p99 ms"] == pytest.approx(0.1)


def test_warm_up_is_not_counted(tmp_path: Path) -> None:
    path = tmp_path / "times"
    times = [
        (number * 1000 * MS, number * 1000 * MS, number * 1000 * MS + MS) for number in range(4)
    ]
    path.write_bytes(np.array(times, dtype="<i8").tobytes())
    assert list(Requests.read(path, 1.5).due) == [2000 * MS, 3000 * MS]


def test_rate_is_sustained_only_if_acknowledgements_keep_up() -> None:
    assert requests(*[1.0] * 1000).is_sustained(1000)
    # The last acknowledgement comes 100 ms after the end of one second.
    assert not requests(*[1.0] * 999, 101.0).is_sustained(1000)
    unanswered = requests(*[1.0] * 999, -1)
    assert not unanswered.is_sustained(1000)
    assert unanswered.figures()["failed"] == 1
    assert unanswered.figures()["max ms"] >= 20_000


def test_slow_requests_are_the_slowest_thousandth_and_ten_at_least() -> None:
    few = requests(*[1.0] * 90, *range(10, 20))
    assert [ended - due for due, ended in few.slow()] == [n * MS for n in range(10, 20)]
    assert len(requests(*[1.0] * 30_000).slow()) == 30
    assert len(requests(1.0, 2.0).slow()) == 2


def test_connections_have_at_most_a_thousand_records_a_second() -> None:
    counts = [
        OpenLoop(rate=rate, seconds=1, warm_s=0, partitions=1, linger_ms=0).connections
        for rate in (1_000, 10_000, 20_000)
    ]
    assert counts == [6, 10, 20]


def test_overlap_needs_a_common_time() -> None:
    events = [
        StallEvent("k", "l", 10, 20),
        StallEvent("k", "l", 15, 30),
        StallEvent("k", "l", 50, 60),
    ]
    spans = [(0, 10), (30, 50), (60, 70), (0, 11), (29, 40), (22, 23), (0, 100)]
    assert [overlapping([span], events) for span in spans] == [0, 0, 0, 1, 1, 1, 1]
    assert overlapping(spans, []) == 0
    assert overlapping(spans, events) == 4


def test_events_are_grouped_within_the_window_by_total_time() -> None:
    events = [
        StallEvent("flush", "a", 0, 10 * MS),
        StallEvent("flush", "a", 20 * MS, 30 * MS),
        StallEvent("turn", "b", 40 * MS, 55 * MS, 4 * MS, 1 * MS, 7),
        StallEvent("turn", "late", 900 * MS, 990 * MS),
    ]
    slow = [(5 * MS, 6 * MS), (25 * MS, 50 * MS), (100 * MS, 110 * MS)]
    first, second = groups(events, (0, 200 * MS), slow)
    assert (first.label, first.total_ms, first.slow) == ("a", 20, 2)
    assert (second.label, second.total_ms, second.slow) == ("b", 15, 1)
    assert report(events, (0, 200 * MS), slow) == [
        "flush, a: 2 x, 20 ms (longest 10.0); 2 of 3 slow requests",
        (
            "turn, b: 1 x, 15 ms (longest 15.0), 4 on a core, 1 without one, 10 blocked, "
            "7 callbacks each; 1 of 3 slow requests"
        ),
        "no event: 1 of 3 slow requests",
    ]


def test_dropped_events_are_an_error(tmp_path: Path) -> None:
    recorder = StallRecorder(events_max=2)
    for number in range(3):
        recorder.add(StallEvent("k", "l", number, number + 1))
    write_events(tmp_path / "kept", recorder.events, 0)
    assert [event.began_ns for event in read_events(tmp_path / "kept")] == [1, 2]
    write_events(tmp_path / "full", recorder.events, recorder.dropped)
    with pytest.raises(ValueError, match="1 events did not fit"):
        read_events(tmp_path / "full")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> Iterator[StallRecorder]:
    """A recorder that measures this process until the end of the test, and every flush."""
    monkeypatch.setattr(uvloop, "Loop", uvloop.Loop)
    for name in ("fsync", "fdatasync", "pwrite", "pwritev"):
        monkeypatch.setattr(os, name, getattr(os, name))
    monkeypatch.setattr(ThreadPoolExecutor, "submit", ThreadPoolExecutor.submit)
    monkeypatch.setattr(stall_recorder, "_OTHER_NS", 0)
    before = len(gc.callbacks)
    recorder = StallRecorder()
    recorder.install()
    yield recorder
    del gc.callbacks[before:]


def test_recorder_finds_long_turns_flushes_and_waits_for_threads(
    installed: StallRecorder, tmp_path: Path
) -> None:

    async def work() -> None:
        loop = asyncio.get_running_loop()
        time.sleep(0.02)  # noqa: ASYNC251
        await asyncio.sleep(0.01)
        with ThreadPoolExecutor(1, "pool") as pool:
            await asyncio.gather(*(loop.run_in_executor(pool, time.sleep, 0.01) for _ in range(2)))
        with (tmp_path / "file").open("wb") as file:
            os.fsync(file.fileno())
        gc.collect()

    uvloop.run(work())
    kinds = {event.kind for event in installed.events}
    assert {
        stall_recorder.TURN,
        stall_recorder.FLUSH,
        stall_recorder.GARBAGE,
        stall_recorder.TO_THREAD,
        stall_recorder.TO_LOOP,
    } <= kinds
    turn = next(event for event in installed.events if event.kind == stall_recorder.TURN)
    assert turn.ended_ns - turn.began_ns >= 20 * MS
    assert turn.cpu_ns < 20 * MS
    assert turn.callbacks >= 1
    # uvloop's own wrapper is the coroutine that ran.
    assert turn.label.endswith("run.<locals>.wrapper")


async def test_callback_has_the_name_of_its_coroutine() -> None:
    async def body() -> None:
        await asyncio.sleep(0)

    task = asyncio.ensure_future(body())
    names = [label_of(task.cancel)]
    await task
    # The name is the same after the end.
    names.append(label_of(task.cancel))
    assert names == ["test_latency.test_callback_has_the_name_of_its_coroutine.<locals>.body"] * 2
    assert label_of(label_of) == "tests.benchmarks.latency.stall_recorder.label_of"
    assert label_of(functools.partial(label_of, 1)) == label_of(label_of)


def test_rounds_alternate_the_sides_and_rotate_the_measures() -> None:
    assert sides_of(1) != sides_of(2) == sides_of(1)[::-1]
    three = LATENCY_MEASURES[:3]
    firsts = [rotated(three, number)[0] for number in range(1, 5)]
    assert firsts == [*three, three[0]]
    assert sorted(map(str, rotated(three, 2))) == sorted(map(str, three))
    assert len(set(map(str, LATENCY_MEASURES))) == len(LATENCY_MEASURES) == 64


def test_last_line_has_the_ratios_and_the_rates_that_were_not_sustained() -> None:
    results = Results(benchmark="latency", rounds=3)
    for number, (ours, theirs) in enumerate(((2.0, 4.0), (9.0, 3.0), (6.0, 6.0)), 1):
        for side, value in ((OURS, ours), (KAFKA, theirs)):
            figures = {"p99 ms": value, SUSTAINED: float(side == KAFKA or number == 1)}
            results.add(str(LATENCY_MEASURES[0]), side, number, figures)
    assert summary(results) == (
        "ratios of latency: 1 measures, 3 rounds; p99 1.00 (1.00 to 1.00); "
        "Tidemark did not sustain 1; Apache Kafka did not sustain 0"
    )
