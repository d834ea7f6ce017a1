"""Messages between the operator and an Export's job, and the rejection of invalid ones."""

import dataclasses
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemark.export_job import (
    MAINTENANCE_CHARS_MAX,
    MESSAGE_CHARS_MAX,
    REPORT_BYTES_MAX,
    SERVED_BYTES_MAX,
    ExportJobPhase,
    HiddenOption,
    JobReport,
    MaintenancePlan,
    MaintenanceReport,
    OptionPlace,
    Order,
    OrderError,
    TopicReport,
    TopicsReport,
)

ORDER = Order(
    source={"topic": "orders", "path": "/tier"},
    table={"table": "db.orders", "catalog": {"type": "rest"}},
    hidden=(
        HiddenOption(place=OptionPlace.SOURCE, name="kafka.sasl.password", variable="A"),
        HiddenOption(place=OptionPlace.CATALOG, name="token", variable="B"),
    ),
    jars=("/a.jar",),
    every_s=60,
)


def test_an_order_is_read_back() -> None:
    assert Order.of_json(ORDER.to_json()) == ORDER


def test_an_order_with_maintenance_is_read_back() -> None:
    plan = MaintenancePlan(schedule="@daily", zone="Europe/Berlin", keep_ms=None, pause_ms=1)
    ordered = dataclasses.replace(ORDER, maintenance=plan)
    assert Order.of_json(ordered.to_json()) == ordered
    # An image of an older version can read any other order.
    assert "maintenance" not in ORDER.to_json()


def test_values_are_written_to_their_fields() -> None:
    filled = ORDER.put(
        {(OptionPlace.REGISTRY, "ca"): "/ca", (OptionPlace.TABLE, "schema_file"): "/s.avsc"}
    )
    assert filled.table["registry_options"] == {"ca": "/ca"}
    assert (filled.table["schema_file"], filled.table["catalog"]) == ("/s.avsc", {"type": "rest"})
    assert "registry_options" not in ORDER.table


def test_hidden_values_are_in_the_environment_alone() -> None:
    revealed = ORDER.revealed({"A": "word", "B": "key"})
    assert revealed.source["kafka.sasl.password"] == "word"
    assert revealed.table["catalog"] == {"type": "rest", "token": "key"}
    with pytest.raises(OrderError, match="token must be in the variable B"):
        ORDER.revealed({"A": "word"})


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"source": {}, "table": {}, "new": 1}', '{"hidden": [{}]}']
)
def test_invalid_order_is_refused(text: str) -> None:
    with pytest.raises(OrderError, match="no order"):
        Order.of_json(text)


@given(
    st.builds(
        JobReport,
        phase=st.sampled_from(ExportJobPhase),
        message=st.text(max_size=3000),
        lag=st.none() | st.integers(0, 2**63 - 1),
        commits=st.integers(0, 2**63 - 1),
        current_ms=st.none() | st.integers(0, 253_402_300_799_999),
        lag_ms=st.none() | st.integers(0, 253_402_300_799_999),
        exported=st.none() | st.integers(0, 2**63 - 1),
        cpu_ms=st.none() | st.integers(0, 253_402_300_799_999),
        maintenance=st.none()
        | st.builds(
            MaintenanceReport,
            step=st.text(max_size=300),
            message=st.text(max_size=3000),
            next_ms=st.none() | st.integers(0, 253_402_300_799_999),
            removed=st.integers(0, 2**63 - 1),
        ),
    )
)
def test_a_report_fits_into_a_termination_message_and_is_read_back(report: JobReport) -> None:
    data = report.to_json()
    assert len(data) <= REPORT_BYTES_MAX
    found = JobReport.of_json(data)
    assert found is not None
    assert (found.phase, found.lag, found.current_ms) == (
        report.phase,
        report.lag,
        report.current_ms,
    )
    assert (found.lag_ms, found.exported, found.cpu_ms) == (
        report.lag_ms,
        report.exported,
        report.cpu_ms,
    )
    assert len(found.message) <= MESSAGE_CHARS_MAX
    if report.maintenance is not None:
        assert found.maintenance is not None
        assert len(found.maintenance.message) <= MAINTENANCE_CHARS_MAX
        assert (found.maintenance.next_ms, found.maintenance.removed) == (
            report.maintenance.next_ms,
            report.maintenance.removed,
        )
    # Other messages may have to be shortened, because escapes take more bytes.
    if report.message.isascii() and report.message.isprintable() and len(report.message) < 1000:
        assert found.message == report.message


def test_topics_of_a_report_are_left_out_until_it_fits() -> None:
    rows = tuple(
        TopicReport(topic="t" * 249, table="x" * 255, lag=n, failure="ö" * 500) for n in range(20)
    )
    topics = TopicsReport(total=2000, failing=30, behind=7, worst=rows)
    report = JobReport(phase=ExportJobPhase.RUNNING, message="m", topics=topics)
    for most in (REPORT_BYTES_MAX, SERVED_BYTES_MAX):
        data = report.to_json(most)
        assert len(data) <= most
        found = JobReport.of_json(data)
        assert found is not None
        assert found.topics is not None
        assert (found.topics.total, found.topics.failing, found.topics.behind) == (2000, 30, 7)
        assert found.topics.worst
        assert found.topics.worst[0].topic == "t" * 249
        assert len(found.topics.worst[0].failure) == 256


@pytest.mark.parametrize(
    "topics",
    [
        7,
        {"total": 1},
        {"total": -1, "failing": 0, "behind": 0, "worst": []},
        {"total": 1, "failing": 0, "behind": 0, "worst": 7},
        {"total": 1, "failing": 0, "behind": 0, "worst": [{"topic": 1}]},
        {
            "total": 1,
            "failing": 0,
            "behind": 0,
            "worst": [{"topic": "t", "table": "x", "lag": "1", "failure": ""}],
        },
    ],
    ids=str,
)
def test_invalid_topics_of_a_report_are_ignored(topics: object) -> None:
    assert JobReport.of_json(json.dumps(GOOD | {"topics": topics})) is None


GOOD = json.loads(JobReport(phase=ExportJobPhase.RUNNING, lag=3).to_json())


@pytest.mark.parametrize(
    "change",
    [
        {"phase": "Other"},
        {"message": 7},
        {"lag": -1},
        {"lag": 2**63},
        {"lag": "3"},
        {"rows": True},
        {"lag_ms": -1},
        {"exported": 2**63},
        {"cpu_ms": 1.5},
        {"written_bytes": "1"},
        {"observed_ms": 253_402_300_800_000},
        {"committed_ms": 253_402_300_800_000},
        {"message": "x" * SERVED_BYTES_MAX},
        {"maintenance": []},
        {"maintenance": {"step": 3}},
        {"maintenance": {"removed": -1}},
        {"maintenance": {"next_ms": 253_402_300_800_000}},
    ],
    ids=str,
)
def test_invalid_report_is_ignored(change: dict[str, object]) -> None:
    assert JobReport.of_json(json.dumps(GOOD)) is not None
    assert JobReport.of_json(json.dumps(GOOD | change)) is None


@pytest.mark.parametrize(
    "text", [b"", b"\xff", b"[" * 4000, b"null", b"[]"], ids=lambda text: str(text[:6])
)
def test_report_that_is_no_object_is_ignored(text: bytes) -> None:
    assert JobReport.of_json(text) is None
