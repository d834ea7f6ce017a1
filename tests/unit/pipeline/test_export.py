"""Progress of a table: properties of its commits, and how a job uses them."""

import json
from pathlib import Path

import pytest

from tidemark.export_job import ExportJobPhase
from tidemark_pipeline.errors import DependencyUnavailable
from tidemark_pipeline.export.dead_letters import lower_offsets, offsets_above, raised_claim
from tidemark_pipeline.export.export_progress import (
    Exported,
    ExportError,
    Superseded,
    WriteMode,
    check_not_superseded,
    new_claim,
)
from tidemark_pipeline.export.formats import Format, catalog_settings, packages
from tidemark_pipeline.export.table_options import TableOptions
from tidemark_pipeline.jobs.export import batch_options, retry_late_workers
from tidemark_pipeline.jobs.export_job import phase_of

FOUND = Exported("t", "id", {0: 17, 1: 4}, 3, "a")


def test_properties_of_a_commit_are_read_back() -> None:
    assert Exported.of_properties(FOUND.to_properties()) == FOUND
    assert FOUND.to_properties()["tidemark.offsets"] == '{"0":17,"1":4}'
    assert Exported.of_properties({"operation": "replace"}) is None
    with pytest.raises(ExportError, match="malformed property"):
        Exported.of_properties(FOUND.to_properties() | {"tidemark.offsets": "[]"})


def test_a_starting_job_continues_at_the_tables_position_with_the_next_epoch() -> None:
    assert new_claim(None, "t", "id", "b") == Exported("t", "id", {}, 1, "b")
    assert new_claim(FOUND, "t", "", "b") == Exported("t", "id", {0: 17, 1: 4}, 4, "b")


def test_a_table_keeps_the_mode_that_it_was_begun_with() -> None:
    """A commit without a mode has appended."""
    assert Exported.of_properties(FOUND.to_properties() | {"tidemark.mode": "upsert"}) != FOUND
    del (older := FOUND.to_properties())["tidemark.mode"]
    assert Exported.of_properties(older) == FOUND
    upsert = new_claim(None, "t", "id", "b", WriteMode.UPSERT)
    assert Exported.of_properties(upsert.to_properties()) == upsert
    with pytest.raises(ExportError, match="with mode upsert, not append"):
        new_claim(upsert, "t", "id", "c", WriteMode.APPEND)


@pytest.mark.parametrize(("topic", "topic_id"), [("u", "id"), ("t", "another")])
def test_a_table_of_another_topic_is_refused(topic: str, topic_id: str) -> None:
    with pytest.raises(ExportError, match=r"another table|a new table"):
        new_claim(FOUND, topic, topic_id, "b")
    with pytest.raises(ExportError, match=r"remove this one .*DROP TABLE .*delete its folder"):
        new_claim(FOUND, topic, topic_id, "b")


def test_a_table_without_records_accepts_the_recreated_topic() -> None:
    """A first export that failed before its commit leaves such a table."""
    empty = new_claim(None, "t", "id", "a")
    assert new_claim(empty, "t", "another", "b") == Exported("t", "another", {}, 2, "b")
    with pytest.raises(ExportError, match="contains the topic t"):
        new_claim(empty, "u", "another", "b")


def test_offsets_never_move_back() -> None:
    assert FOUND.reaching({0: 20, 2: 1}).offsets == {0: 20, 1: 4, 2: 1}
    with pytest.raises(ExportError, match="go back to 16"):
        FOUND.reaching({0: 16})


def test_lag_counts_offsets_missing_from_the_table() -> None:
    # The table has nothing of partition 2, so that all of its 6 offsets count.
    assert FOUND.lag({0: 20, 1: 4, 2: 6}) == 3 + 6


def test_a_superseded_job_names_its_successor() -> None:
    check_not_superseded(FOUND, Exported.of_properties(FOUND.to_properties()))
    with pytest.raises(Superseded, match=r"another job \(b, epoch 4\)"):
        check_not_superseded(FOUND, FOUND.taken_by("b"))
    with pytest.raises(Superseded, match="rolled back"):
        check_not_superseded(FOUND, Exported("t", "id", {0: 1}, 2, "a"))


def test_start_comes_from_the_table_or_from_options_if_new() -> None:
    given = {"topic": "t", "startingTimestamp": "5"}
    new = batch_options(given, Exported("t"))
    assert new == {**given, "maxBytesPerTrigger": str(1024**3)}
    continued = batch_options(given, FOUND)
    assert json.loads(continued["startingOffsets"]) == {"t": {"0": 17, "1": 4}}
    assert "startingTimestamp" not in continued
    assert batch_options({"topic": "t"}, Exported("t"))["startingOffsets"] == "earliest"


def test_packages_and_table_names_by_format(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    (tmp_path / "jars").mkdir()
    in_s3 = {"type": "rest", "io-impl": "org.apache.iceberg.aws.s3.S3FileIO"}
    iceberg, delta = (
        TableOptions.of({"table": "a.b", "catalog": in_s3}),
        TableOptions.of({"table": "a.b", "format": "delta", "warehouse": "s3a://l`ake/"}),
    )
    fetched = iceberg.settings()["spark.jars.packages"].split(",")
    assert [item.split(":")[1] for item in fetched] == [
        *("iceberg-spark-runtime-4.1_2.13", "iceberg-aws-bundle")
    ]
    assert iceberg.name_of("a.b") == "lake.a.b"
    assert delta.name_of("a.b") == "delta.`s3a://l``ake/a/b`"
    assert "spark.sql.catalog.spark_catalog" in delta.settings()
    # Packages that the image contains, or that the user names, are not fetched.
    (tmp_path / "jars" / "iceberg-spark-runtime-4.1_2.13-1.12.0.jar").touch()
    assert "runtime" not in iceberg.settings()["spark.jars.packages"]
    assert iceberg.settings(["x.jar"])["spark.jars"] == "x.jar"
    assert "spark.jars.packages" not in iceberg.settings(["x.jar"])


@pytest.mark.parametrize(
    ("catalog", "bundles"),
    [
        ({"type": "rest", "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}, ["gcp"]),
        ({"type": "rest", "io-impl": "org.apache.iceberg.azure.adlsv2.ADLSFileIO"}, ["azure"]),
        ({"type": "glue"}, ["aws"]),
        ({"catalog-impl": "org.apache.iceberg.aws.glue.GlueCatalog"}, ["aws"]),
        ({"type": "glue", "io-impl": "org.apache.iceberg.gcp.gcs.GCSFileIO"}, ["aws", "gcp"]),
        ({"type": "hive"}, []),
    ],
    ids=str,
)
def test_a_catalog_has_the_package_of_its_cloud(
    catalog: dict[str, str], bundles: list[str]
) -> None:
    _, *more = packages(Format.ICEBERG, catalog)
    assert [item.split(":")[1] for item in more] == [f"iceberg-{name}-bundle" for name in bundles]


def test_a_catalog_keeps_no_tables_in_its_cache() -> None:
    assert catalog_settings("lake", {"type": "hadoop", "warehouse": "/w"}) == {
        "spark.sql.catalog.lake": "org.apache.iceberg.spark.SparkCatalog",
        "spark.sql.catalog.lake.cache-enabled": "false",
        "spark.sql.catalog.lake.type": "hadoop",
        "spark.sql.catalog.lake.warehouse": "/w",
    }


def test_two_tables_continue_at_the_earlier_position() -> None:
    rows, letters = {0: 17, 1: 4}, {0: 20, 2: 9}
    assert lower_offsets(rows, letters) == {0: 17}
    assert offsets_above(letters, lower_offsets(rows, letters)) == {0: 20, 2: 9}
    assert offsets_above(rows, rows) == {}
    # A batch that ends below the table's offset does not move it back.
    own = Exported("t", "id", letters, 3, "a")
    assert raised_claim(own, Exported("t", "id", {0: 18, 1: 5})).offsets == {0: 20, 1: 5, 2: 9}


LATE = "[STREAM_FAILED] ... SparkException: Python worker failed to connect back. SQLSTATE: XXKST"


def test_late_python_worker_is_retried() -> None:
    """Spark waits 10 s for the worker that plans a stream, which is short on a busy machine."""
    calls: list[RuntimeError | None] = [RuntimeError(LATE), RuntimeError(LATE), None]

    def run() -> None:
        error = calls.pop(0)
        if error is not None:
            raise error

    retry_late_workers(run)
    assert calls == []


def test_a_failing_worker_start_names_the_remedy() -> None:
    def late() -> None:
        raise RuntimeError("Timed out while waiting for the Python worker to connect back")

    with pytest.raises(
        DependencyUnavailable, match=r"did not start within .* 5 times: .* more CPU"
    ) as found:
        retry_late_workers(late)
    assert phase_of(found.value)[0] is ExportJobPhase.FAILED  # so the operator starts it again


def test_other_failures_are_not_retried() -> None:
    calls = []

    def run() -> None:
        calls.append(1)
        raise ExportError("the table contains the topic u")

    with pytest.raises(ExportError, match="the topic u"):
        retry_late_workers(run)
    assert calls == [1]
