"""Outcome of ``tidemark audit``: it is recorded, or the failure is reported."""

import uuid
from pathlib import Path

import pytest

from tidemark.tier.maintenance.audit_record import TopicAudit, read_record
from tidemark.tier.metadata.layout import AUDIT_KEY
from tidemark.tier.open import open_tier
from tidemark.tier.stores.config import FilesystemConfig
from tidemark_cli.tier.audit import _record
from tidemark_cli.tier.stores import OpenTier

OUTCOME = TopicAudit(
    topic_id=uuid.UUID(int=7),
    name="flights",
    at_ms=1,
    by="tidemark-1.2.3",
    manifests=1,
    versions=(1, 1),
    segments=1,
    size_bytes=1,
)


def test_audit_outcome_is_recorded_or_the_failure_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = FilesystemConfig(tmp_path)
    found = OpenTier(open_tier(config), config, "store", "cluster")
    _record(found, [OUTCOME], covers_tier=True)
    assert read_record(found.tier.store).topics == {OUTCOME.topic_id: OUTCOME}
    assert capsys.readouterr().err == ""
    # A directory in the place of the object makes every write fail.
    (tmp_path / AUDIT_KEY).unlink()
    (tmp_path / AUDIT_KEY).mkdir()
    _record(found, [OUTCOME], covers_tier=True)
    assert "the outcome could not be stored in the tier: " in capsys.readouterr().err
