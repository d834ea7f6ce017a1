"""The newest versions of the table beside Apache Kafka (``python -m tests.conformance.oracle`` goes
through all of them)."""

from collections.abc import Iterator

import pytest

from tests.conformance.oracle import compare
from tests.conformance.oracle.cases import cases
from tests.conformance.oracle.sides import Side
from tests.kafka_programs import kafka_jars
from tests.suites.targets import Wants, apache_kafka, bootstrap, tidemark

pytestmark = [pytest.mark.java, pytest.mark.slow]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    kafka_jars()
    wants = Wants(brokers=1)
    with (
        apache_kafka(tmp_path_factory.mktemp("kafka"), wants) as kafka,
        tidemark(tmp_path_factory.mktemp("ours"), wants) as target,
    ):
        both = Side("ours", bootstrap(target)), Side("Apache Kafka", bootstrap(kafka))
        for side in both:
            compare.prepare(side)
        yield both
        for side in both:
            side.close()


def test_the_newest_versions_are_answered_alike(sides: tuple[Side, Side]) -> None:
    newest = {key: versions[-1:] for key, versions in compare.shared_versions(*sides).items()}
    verdict = compare.run(*sides, cases(newest), print)
    assert verdict.unexplained == []
