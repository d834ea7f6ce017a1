"""Loads and measures of ``make bench``."""

import json

import pytest

from tests.benchmarks.load import KINDS, ClientLoad
from tests.benchmarks.load_process import together
from tests.benchmarks.measures import MEASURES, SETTINGS


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
