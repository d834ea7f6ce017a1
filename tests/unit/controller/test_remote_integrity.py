"""A Topic's report of the last audit: whose record counts, and its conditions."""

import dataclasses

import pytest

from tests.unit.controller.controller_world import (
    T0,
    TIERED,
    ControllerWorld,
    broker,
    cluster,
    messages,
    numbered_uuid,
    ready,
    topic,
)
from tidemark.tier.maintenance.audit_record import TopicAudit, WorstFinding
from tidemark.tier.maintenance.findings import FindingKind
from tidemark.tier.metadata.layout import segment_key
from tidemark.tiering import DisablePolicy, Tiering, TieringState
from tidemark_operator.controller.state.model import Audits, PersistedTiering, TieringSpec
from tidemark_operator.controller.status.conditions import MESSAGE_CHARS_MAX
from tidemark_operator.controller.status.remote_integrity import VALID_MS

ID = numbered_uuid(1)
SOUND = TopicAudit(
    topic_id=ID,
    name="topic-1",
    at_ms=T0,
    by="tidemark-1.2.3",
    manifests=1,
    versions=(4, 4),
    segments=2,
    size_bytes=5,
)
DAMAGED = dataclasses.replace(SOUND, counts={FindingKind.DAMAGED: 1})


def world_of(audit: TopicAudit | None, *, problem: str = "", **fields: object) -> ControllerWorld:
    fields.setdefault("tiering_spec", TieringSpec(enabled=True))
    audits = Audits({} if audit is None else {audit.topic_id: audit}, problem)
    return ControllerWorld(
        brokers=[broker(node_id) for node_id in (1, 2, 3)],
        topics=[topic(**fields)],
        view=cluster(TIERED, remote_storage="{}", audits=audits),
    )


def integrity(world: ControllerWorld, *, now_ms: int = T0) -> tuple[str, str] | None:
    return ready(world.reconcile(now_ms=now_ms)).get("RemoteIntegrity")


def test_recreated_topic_ignores_the_audit_of_the_former_one() -> None:
    # The record has the id of the former topic of this name.
    of_another = dataclasses.replace(DAMAGED, topic_id=numbered_uuid(9))
    assert integrity(world_of(of_another)) == ("Unknown", "NotAudited")


@pytest.mark.parametrize("audit", [SOUND, DAMAGED], ids=["sound", "damaged"])
def test_a_record_with_a_future_timestamp_is_ignored(audit: TopicAudit) -> None:
    ahead = dataclasses.replace(audit, at_ms=T0 + 3_600_000)
    assert integrity(world_of(ahead)) == ("Unknown", "NotAudited")
    # A minute of clock skew between two machines is tolerated.
    skewed = dataclasses.replace(SOUND, at_ms=T0 + 60_000)
    assert integrity(world_of(skewed)) == ("True", "AuditPassed")


def test_passed_audit_expires_and_damage_stays() -> None:
    for audit, later in (
        (SOUND, ("Unknown", "AuditOutdated")),
        (DAMAGED, ("False", "DamageFound")),
    ):
        world = world_of(audit)
        at_the_end = integrity(world, now_ms=T0 + VALID_MS)
        assert at_the_end is not None
        assert at_the_end[1] in ("AuditPassed", "DamageFound")
        assert integrity(world, now_ms=T0 + VALID_MS + 1) == later


@pytest.mark.parametrize(
    ("tiering", "expected"),
    [
        (Tiering(TieringState.DISABLED, 1, DisablePolicy.DELETE), None),
        (Tiering(TieringState.DISABLED, 1, DisablePolicy.RETAIN), ("False", "DamageFound")),
        (Tiering(TieringState.ENABLED, 1, DisablePolicy.DELETE), ("Unknown", "NotAudited")),
        (Tiering(TieringState.ENABLED, 1, DisablePolicy.RETAIN), ("False", "DamageFound")),
    ],
    ids=["deleted", "retained", "reenabled", "reenabled retained"],
)
def test_findings_in_a_deleted_tier_are_not_reported(
    tiering: Tiering, expected: tuple[str, str] | None
) -> None:
    """The audit is an hour older than the present tiering state."""
    status = PersistedTiering(tiering=tiering, since_ms=T0 + 3_600_000)
    spec = TieringSpec(enabled=tiering.copies)
    world = world_of(DAMAGED, tiering_spec=spec, tiering_status=status)
    assert integrity(world, now_ms=T0 + 7_200_000) == expected


def test_untiered_topic_has_no_integrity_condition() -> None:
    assert integrity(world_of(SOUND, tiering_spec=TieringSpec())) is None


def test_integrity_affects_no_other_condition() -> None:
    good, bad = (ready(world_of(audit).reconcile()) for audit in (SOUND, DAMAGED))
    assert bad.pop("RemoteIntegrity") != good.pop("RemoteIntegrity")
    assert bad == good


def test_summary_of_tiering_shows_the_damage_that_an_audit_found() -> None:
    reason = (integrity(world_of(DAMAGED)) or ("", ""))[1]
    tiering = world_of(DAMAGED).reconcile().status["tiering"]
    assert isinstance(tiering, dict)
    assert (tiering["state"], tiering["summary"]) == ("Enabled", reason)
    assert reason not in ("", "Enabled")


LONG = "n" * 249


def test_message_starts_with_the_worst_finding_and_the_remedy() -> None:
    """Only the end is truncated, where the command is that users know."""
    key = segment_key(LONG, ID, 3, 10, ID) + ".log"
    # The longest possible names and numbers, to reach the limit of a message.
    worst = WorstFinding(FindingKind.DAMAGED, 2**31 - 1, key, 2**63 - 2, 2**63 - 2)
    counts = {kind: 2**63 - 1 for kind in FindingKind if kind.is_damage}
    audit = dataclasses.replace(DAMAGED, by="v" * 60, counts=counts, worst=(worst,))
    text = messages(world_of(audit, name=LONG).reconcile())["RemoteIntegrity"]
    assert len(text) <= MESSAGE_CHARS_MAX
    assert key in text
    assert f"give up its records with a RecordDeletion before offset {2**63 - 1}" in text
