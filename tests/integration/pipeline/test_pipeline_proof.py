"""A short version of ``make pipeline-proof``: a cluster of three brokers, records of all kinds."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.apicurio import ApicurioMissing
from tests.conformance.local_cluster import run_cluster
from tests.integration.pipeline.marks import MARKS
from tests.pipeline_proof.scenarios import BROKERS, Proof, Size

pytestmark = [*MARKS, pytest.mark.timeout(900), pytest.mark.full]


def test_spark_reads_what_confluent_kafka_reads(session: SparkSession, tmp_path: Path) -> None:
    """Spark reads everything, without any broker too, and refuses a foreign object."""
    (tmp_path / "cluster").mkdir()
    with run_cluster(tmp_path / "cluster", brokers=BROKERS) as cluster:
        size = Size(records=100_000, segment_bytes=1024 * 1024)
        proof = Proof(session, cluster, tmp_path, size, print)
        proof.produced()
        proof.undisturbed()
        proof.no_broker()
        proof.damaged()


@pytest.mark.long
def test_poisoned_records_end_no_export(session: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "cluster").mkdir()
    with run_cluster(tmp_path / "cluster", brokers=BROKERS) as cluster:
        size = Size(records=1_000, segment_bytes=1024 * 1024)
        try:
            Proof(session, cluster, tmp_path, size, print).poisoned()
        except ApicurioMissing as error:
            pytest.skip(str(error))
