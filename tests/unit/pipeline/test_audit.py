"""An audit finds every deviation from the manifest, and reports no expired segment."""

import dataclasses
import pickle
import random
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest
from small_tier import SmallTier

from tidemark.tier.maintenance.audit_record import read_record, write_record
from tidemark.tier.maintenance.findings import Finding, FindingKind, of_line
from tidemark.tier.metadata.queries import live_segments
from tidemark.tier.metadata.segment import SegmentEntry
from tidemark.tier.segments import auxiliary
from tidemark.tier.segments.integrity import ObjectVersionUnsupported
from tidemark.tier.stores.config import FilesystemConfig
from tidemark.tier.stores.key_ring import NO_KEYS, KeyRing
from tidemark_pipeline.audit.metrics_text import prometheus_text
from tidemark_pipeline.audit.segments import AuditReport, AuditTask, plan, run_task

VALUES = [b"value-%d" % number for number in range(9)]


def audited(small: SmallTier, task_bytes: int = 1) -> AuditReport:
    topic = small.tier.reader.find_topic("t")
    planned = plan(small.tier, topic, task_bytes)
    storage = small.storage
    return AuditReport.of(topic, planned, [run_task(storage, task) for task in planned.tasks])


def kinds(findings: tuple[Finding, ...]) -> list[str]:
    return [finding.kind.value for finding in findings]


def data(small: SmallTier, key: str) -> Path:
    return small.path / key


def test_a_sound_topic_has_no_findings_and_every_segment_is_read(small_tier: SmallTier) -> None:
    entries = [small_tier.copy(VALUES) for _ in range(3)]
    for task_bytes in (1, 1 << 30):
        report = audited(small_tier, task_bytes)
        assert report.findings == ()
        assert (report.segments, report.size_bytes) == (3, sum(e.size_bytes for e in entries))


def flip(path: Path, at: int) -> None:
    body = bytearray(path.read_bytes())
    body[at] ^= 1
    path.write_bytes(bytes(body))


DAMAGES: dict[str, tuple[Callable[[Path, Path], object], str, str]] = {
    "log gone": (lambda log, aux: log.unlink(), "Missing", ".log"),
    "aux gone": (lambda log, aux: aux.unlink(), "Missing", ".aux"),
    "log changed": (lambda log, aux: flip(log, 70), "Damaged", "digest differs"),
    "aux changed": (lambda log, aux: flip(aux, 9), "Damaged", "its digest is not"),
    "log cut": (lambda log, aux: log.write_bytes(log.read_bytes()[:-1]), "Damaged", "bytes"),
    "log longer": (lambda log, aux: log.write_bytes(log.read_bytes() + b"x"), "Damaged", "bytes"),
    "aux longer": (lambda log, aux: aux.write_bytes(aux.read_bytes() + b"x"), "Damaged", "bytes"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damage_to_an_object_is_found(small_tier: SmallTier, name: str) -> None:
    damage, kind, detail = DAMAGES[name]
    small_tier.copy(VALUES)
    entry = small_tier.copy(VALUES)
    damage(data(small_tier, entry.log_key), data(small_tier, entry.aux_key))
    (finding,) = audited(small_tier).findings
    assert finding.kind.value == kind
    assert detail in finding.detail
    assert (finding.topic, finding.partition) == ("t", 0)
    assert (finding.start_offset, finding.end_offset_inclusive) == (9, 17)


def test_object_of_a_newer_version_ends_the_audit(
    small_tier: SmallTier, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as newer:
        newer.setattr(auxiliary, "_VERSION", 5)
        small_tier.copy(VALUES)
    # It is not damaged, and nothing is known about its records, as without its encryption key.
    with pytest.raises(ObjectVersionUnsupported, match="format version 5"):
        audited(small_tier)


FORMS = {
    "compressed": (True, NO_KEYS),
    "encrypted": (False, KeyRing.parse(f"k: {'A' * 43}=")),
    "compressed and encrypted": (True, KeyRing.parse(f"k: {'A' * 43}=")),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_planted_change_of_a_stored_form_is_found(tmp_path: Path, form: str) -> None:
    """``unit/tier/test_frames.py`` plants 1,000 of them in each form."""
    compress, keys = FORMS[form]
    small = SmallTier(_folder(tmp_path), compress=compress, keys=keys)
    entry = small.copy([b"value %d, compressible" % number * 100 for number in range(200)])
    assert audited(small).findings == ()
    rng = random.Random(form)
    for number in range(30):
        path = data(small, entry.aux_key if number % 3 == 0 else entry.log_key)
        body = path.read_bytes()
        flip(path, rng.randrange(len(body)))
        (finding,) = audited(small).findings
        assert finding.kind is FindingKind.DAMAGED
        path.write_bytes(body)
    assert audited(small).findings == ()


def test_segment_without_digests_is_checked_by_its_batches(tmp_path: Path) -> None:
    small = SmallTier(_folder(tmp_path), uuid.uuid4(), with_digests=False)
    entry = small.copy(VALUES)
    assert audited(small).findings == ()
    # The CRC of the batch reveals the change, since there is no digest.
    flip(data(small, entry.log_key), 70)
    (finding,) = audited(small).findings
    assert finding.kind is FindingKind.DAMAGED


def _folder(tmp_path: Path) -> Path:
    folder = tmp_path / "tier"
    folder.mkdir()
    return folder


def test_segment_that_expires_during_the_audit_is_no_finding(small_tier: SmallTier) -> None:
    expired, kept = small_tier.copy(VALUES), small_tier.copy(VALUES)
    (task,) = plan(small_tier.tier, small_tier.tier.reader.find_topic("t"), 1 << 30).tasks
    # The task names both segments, and the first one expires before the task runs.
    small_tier.expire_to(9)
    for entry in (expired, kept):
        data(small_tier, entry.log_key).unlink()
    checked = run_task(FilesystemConfig(small_tier.path), task)
    assert [finding.object for finding in checked.findings] == [kept.log_key]


def test_a_manifest_that_cannot_be_read_is_a_finding_and_the_others_are_audited(
    small_tier: SmallTier,
) -> None:
    small_tier.copy(VALUES)
    (head,) = (small_tier.path / "heads").rglob("*.json")
    (head.parent / "1.json").write_text("{}")
    # The unreadable head is of partition 1, and partition 0 is sound.
    report = audited(small_tier)
    assert kinds(report.findings) == ["Manifest"]
    assert report.findings[0].partition == 1
    assert report.segments == 1


Change = Callable[[SegmentEntry], SegmentEntry]
LINES: dict[str, tuple[Change, list[str], str]] = {
    "sound": (lambda e: e, [], ""),
    "gap": (
        lambda e: dataclasses.replace(e, start_offset=11, from_offset=11),
        ["Gap"],
        "nothing answers for the offsets 9 to 10",
    ),
    "overlap": (
        lambda e: dataclasses.replace(e, start_offset=7, from_offset=7),
        ["Overlap"],
        "answers from 7 on, the one before it to 8",
    ),
    "outside itself": (
        lambda e: dataclasses.replace(e, start_offset=10),
        ["Overlap"],
        "is to answer from 9 on",
    ),
    "older leader": (
        lambda e: dataclasses.replace(e, leader_epochs=((0, 0),)),
        ["Lineage"],
        "is of leader epoch 0, the one before it of 1",
    ),
    "leader of the future": (
        lambda e: dataclasses.replace(e, leader_epoch=7),
        ["Lineage"],
        "of leader epoch 7, the manifest of none above 1",
    ),
    "tiered epoch of the future": (
        lambda e: dataclasses.replace(e, tiered_epoch=3),
        ["TieredEpoch"],
        "of tiered epoch 3, the topic of 0",
    ),
}


@pytest.mark.parametrize("name", LINES)
def test_segments_of_a_manifest_are_checked_against_each_other(
    small_tier: SmallTier, name: str
) -> None:
    change, found, detail = LINES[name]
    small_tier.copy(VALUES)
    small_tier.copy(VALUES)
    head = small_tier.loaded.head
    pages = small_tier.tier.manifests.pages(small_tier.topic_id, 0)
    first, second = live_segments(head, pages)
    findings = tuple(of_line(head, [first, change(second)]))
    assert kinds(findings) == found
    assert all(detail in finding.detail for finding in findings)


def test_segments_above_the_log_start_have_no_gap(small_tier: SmallTier) -> None:
    for _ in range(3):
        small_tier.copy(VALUES)
    # Offset 13 is within the second segment.
    small_tier.expire_to(13)
    report = audited(small_tier)
    assert (report.findings, report.segments) == ((), 2)


def test_missing_first_segment_is_a_gap(small_tier: SmallTier) -> None:
    small_tier.copy(VALUES)
    small_tier.copy(VALUES)
    head = small_tier.loaded.head
    _, second = live_segments(head, small_tier.tier.manifests.pages(small_tier.topic_id, 0))
    assert kinds(tuple(of_line(head, [second]))) == ["Gap"]


def test_prometheus_reads_every_kind_also_where_there_is_none(small_tier: SmallTier) -> None:
    entry = small_tier.copy(VALUES)
    data(small_tier, entry.log_key).unlink()
    text = prometheus_text(
        [audited(small_tier)], {FindingKind.UNNAMED: 4}, now_ms=1_500_000
    ).decode()
    assert "tidemark_audit_timestamp_seconds 1500.0" in text
    assert 'tidemark_audit_findings{kind="Missing",topic="t"} 1.0' in text
    assert 'tidemark_audit_findings{kind="Gap",topic="t"} 0.0' in text
    assert 'tidemark_audit_leftovers{kind="Unnamed"} 4.0' in text


def test_audit_task_can_be_pickled(small_tier: SmallTier) -> None:
    small_tier.copy(VALUES)
    (task,) = plan(small_tier.tier, small_tier.tier.reader.find_topic("t")).tasks
    received = pickle.loads(pickle.dumps(task))
    assert isinstance(received, AuditTask)
    assert received == task


def test_recorded_audit_counts_all_findings_and_names_the_worst(small_tier: SmallTier) -> None:
    for _ in range(5):
        small_tier.copy(VALUES)
    first, second, third, fourth, _ = small_tier.entries
    for entry in (first, third, fourth):
        data(small_tier, entry.log_key).unlink()
    flip(data(small_tier, second.log_key), 70)
    outcome = audited(small_tier).outcome(at_ms=77, by="tidemark-1.2.3")
    assert (outcome.at_ms, outcome.by, outcome.name) == (77, "tidemark-1.2.3", "t")
    assert (outcome.manifests, outcome.segments) == (1, 5)
    version = small_tier.loaded.head.version
    assert outcome.versions == (version, version)
    assert outcome.counts == {FindingKind.MISSING: 3, FindingKind.DAMAGED: 1}
    # The record names only the three worst findings.
    assert [item.object for item in outcome.worst] == [
        item.log_key for item in (first, third, fourth)
    ]
    write_record(small_tier.tier.store, [outcome], replaces_all=True)
    assert read_record(small_tier.tier.store).topics == {small_tier.topic_id: outcome}
