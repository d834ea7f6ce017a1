"""Benchmark figures: medians of rounds, and Tidemark's figure divided by Apache Kafka's."""

import json
import math

import pytest

from tests.benchmarks.figures import Table, medians, one_line, ratio
from tests.benchmarks.load import KINDS, ClientLoad
from tests.benchmarks.load_process import together
from tests.benchmarks.measures import MEASURES, SETTINGS
from tests.benchmarks.sides import KAFKA, OURS


def test_medians_are_of_each_figure() -> None:
    rounds = [{"a": 1.0, "b": 5.0}, {"a": 3.0}, {"a": 2.0, "b": 7.0}]
    assert medians(rounds) == {"a": 2.0, "b": 6.0}
    assert medians([]) == {}


def test_a_ratio_needs_both_sides() -> None:
    assert ratio({"a": 3.0}, {"a": 2.0}, "a") == 1.5
    assert math.isnan(ratio({}, {"a": 2.0}, "a"))
    assert math.isnan(ratio({"a": 3.0}, {}, "a"))
    assert math.isnan(ratio({"a": 3.0}, {"a": 0.0}, "a"))


def test_table_has_both_figures_and_their_ratio() -> None:
    table = Table()
    for tidemarks, kafkas in ((10.0, 4.0), (30.0, 6.0), (20.0, 5.0)):
        table.add("first", OURS, {"MB/s": tidemarks})
        table.add("first", KAFKA, {"MB/s": kafkas})
    # Only Kafka has a figure of the second measure.
    table.add("second", KAFKA, {"s": 1.0})
    first, figures, second, lonely = table.lines()
    assert (first, second) == ("first", "second")
    assert figures.split() == ["MB/s", "20.00", "5.00", "4.00"]
    assert lonely.split() == ["s", "-", "1.00", "nan"]


def test_a_round_is_one_line() -> None:
    assert one_line({"a MB/s": 1234.5, "b": 0.125}) == "a MB/s 1,234.50  b 0.12"


def test_several_clients_count_from_the_first_to_the_last() -> None:
    answers = [
        {"began": 10.0, "ended": 12.0, "records": 5},
        {"began": 9.5, "ended": 11.0, "records": 7},
    ]
    assert together(answers) == {"began": 9.5, "ended": 12.0, "records": 12}
    assert together(answers[:1]) is answers[0]


@pytest.mark.parametrize("kind", KINDS)
def test_a_load_goes_over_the_command_line(kind: str) -> None:
    load = ClientLoad(kind=kind, bootstrap="h:1", topic="t", records=3, share=(1, 4), members=50)
    read = ClientLoad(**json.loads(load.as_json()))
    assert (read.kind, tuple(read.share), read.members) == (kind, (1, 4), 50)


def test_each_measure_has_a_name_of_its_own_and_enough_brokers() -> None:
    assert len({measure.name for measure in MEASURES}) == len(MEASURES)
    assert all(setting.replicas in (1, 3) for setting in SETTINGS)
    assert all(setting.clients <= setting.partitions for setting in SETTINGS)
