"""``make bench-latency`` at its smallest: figures of both sides, recorded stalls, and the file."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.benchmarks import results as results_module
from tests.benchmarks.latency.__main__ import LatencySizes, measure_all
from tests.benchmarks.latency.requests import MODULE
from tests.benchmarks.latency.rounds import LATENCY_MEASURES
from tests.benchmarks.results import Results
from tests.benchmarks.sides import KAFKA, OURS
from tests.kafka_programs import kafka_jars
from tests.suites.packages import Missing, go_program

pytestmark = [pytest.mark.full, pytest.mark.slow, pytest.mark.java]


def test_latency_benchmark_measures_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka_jars()
    try:
        go_program(MODULE)
    except Missing as error:
        pytest.skip(str(error))
    # Small sizes: this verifies the report, not the speed.
    sizes = LatencySizes(rounds=1, seconds=1, warm_s=0.2, rest_s=0, load=1000)
    (measure,) = (
        item
        for item in LATENCY_MEASURES
        if (item.rate, item.replicas, item.partitions, item.linger_ms) == (1_000, 1, 1, 0)
        and item.after == "rest"
    )
    results = Results(benchmark="latency", rounds=1, setting=asdict(sizes))
    monkeypatch.setattr(results_module, "FOLDER", tmp_path)
    measure_all([measure], sizes, results)
    assert results.failures == []
    assert set(results.figures[str(measure)]) == {OURS, KAFKA}
    for side in (OURS, KAFKA):
        figures = results.figures[str(measure)][side][1]
        assert (
            0 < figures["p50 ms"] <= figures["p99 ms"] <= figures["p99.9 ms"] <= figures["max ms"]
        )
        assert figures["failed"] == 0
        # Each record has a request of its own.
        assert figures["records/request"] == pytest.approx(1)
        assert figures["broker CPU-s"] > 0
    # The last line counts the slow requests that no event explains.
    assert results.stalls[str(measure)][-1].endswith("of 10 slow requests")
    stored = json.loads(results.path().read_text(encoding="utf-8"))
    assert stored["setting"]["rounds"] == 1
    assert set(stored["stalls"]) == {str(measure)}
