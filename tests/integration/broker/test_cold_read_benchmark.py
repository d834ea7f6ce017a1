"""``make bench-cold`` at its smallest: figures of hot and cold reads, and of a producer beside."""

from pathlib import Path

import pytest

from tests.benchmarks import cold_reads
from tests.benchmarks import results as results_module
from tests.benchmarks.cold_reads import ColdSizes, measures, one_round
from tests.benchmarks.latency.requests import MODULE
from tests.benchmarks.results import Results
from tests.benchmarks.sides import OURS
from tests.suites.packages import Missing, go_program

pytestmark = [pytest.mark.full, pytest.mark.slow]


def test_cold_read_benchmark_measures_reads_and_a_producer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        go_program(MODULE)
    except Missing as error:
        pytest.skip(str(error))
    # Small sizes: this verifies the report, not the speed.
    monkeypatch.setattr(cold_reads, "SEGMENT_BYTES", 1 << 20)
    monkeypatch.setattr(results_module, "FOLDER", tmp_path)
    sizes = ColdSizes(rounds=1, readers=(2,), megabytes=8, rate=200, seconds=1, warm_s=0.5)
    results = Results(benchmark="cold", rounds=1)
    one_round(1, OURS, measures(sizes), sizes, results)
    assert results.failures == []
    figures = {name: sides[OURS][1] for name, sides in results.figures.items()}
    assert set(figures) == {
        *("2 readers, hot", "2 readers, cold", "2 readers, cold again"),
        *("produce alone", "produce beside 2 hot readers", "produce beside 2 cold readers"),
    }
    # Hot reads never reach the store. Cold ones read each byte once, and then the cache has them.
    assert figures["2 readers, hot"]["GETs"] == 0
    assert figures["2 readers, cold"]["GETs"] > 0
    assert figures["2 readers, cold"]["GET bytes/byte"] == pytest.approx(1, abs=0.1)
    assert figures["2 readers, cold again"]["GETs"] == 0
    assert figures["produce beside 2 hot readers"]["readers MB/s"] > 0
    assert figures["produce beside 2 cold readers"]["readers MB/s"] > 0
