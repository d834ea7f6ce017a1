"""A short cut through the comparison with Apache Kafka (``make conformance SUITE=oracle`` is all of
it): each kind of request in its newest version and in an older one."""

from pathlib import Path

import pytest

from tests.conformance.oracle import compare
from tests.conformance.oracle.broker_pair import both
from tests.conformance.oracle.cases import cases, some
from tests.effort import IS_QUICK
from tests.kafka_programs import kafka_jars

#: Of the stories. Each round uses versions that are one older.
ROUNDS = 1 if IS_QUICK else 2

pytestmark = [pytest.mark.java, pytest.mark.slow]


def test_requests_are_answered_as_apache_kafka_answers_them(tmp_path: Path) -> None:
    # Skips the test before any broker starts if the machine has no Java.
    kafka_jars()
    with both(tmp_path) as (ours, theirs):
        table = cases(compare.shared_versions(ours, theirs))
        verdict = compare.run(ours, theirs, some(table, rounds=ROUNDS), print)
    assert verdict.unexplained == []
