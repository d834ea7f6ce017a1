"""Figures of ``make bench-cold-brokers``."""

import pytest

from tests.benchmarks.serving_brokers import figures


def test_capacity_is_that_of_a_saturated_broker() -> None:
    # In 10 s the first broker reads for 4.5 s and is idle for 0.5 s, the second for 2 s and 1 s.
    found = figures([5.0, 3.0], [0.05, 0.1], megabytes=1000, took_s=10)
    assert found["all brokers CPU-s/GB"] == pytest.approx(8)
    assert found["of it idle"] == pytest.approx(1.5)
    assert found["MB/CPU-s with idle"] == pytest.approx(200)
    # A saturated broker has 0.95 of its core for reads, which cost it 4.5 s.
    assert found["capacity MB/CPU-s"] == pytest.approx(1000 * 0.95 / 4.5)
