"""``tidemark restore``: Topics from the tier, and others that only have the same name."""

import uuid
from typing import Any

import pytest

from tests.unit.tier.conftest import MemoryStore, TierPartition
from tests.unit.tier.test_sweeper import tier_on
from tests.unit.tier.test_topic_restore import described, only, stored
from tidemark.annotations import RESTORE_FROM_TIER
from tidemark.ids import id_text
from tidemark.tier.maintenance.topic_restore import Restorable, TierOrigin
from tidemark.tier.segments import auxiliary
from tidemark.tier.segments.integrity import ObjectVersionUnsupported
from tidemark_cli.tier.restore import checked, others


def in_the_tier() -> Restorable:
    place, memory = TierPartition(), MemoryStore()
    stored(place, memory, 1)
    described(place, memory)
    return only(memory)


def body(*, topic_id: str = "", annotation: str = "") -> dict[str, Any]:
    annotations = {RESTORE_FROM_TIER: annotation} if annotation else {}
    meta = {"name": "flights", "annotations": annotations}
    return {"metadata": meta, "status": {"topicId": topic_id} if topic_id else {}}


def test_a_restored_topic_is_left_alone_and_a_namesake_is_reported() -> None:
    """A Topic that only has the name is not restored, and the tier's records stay unreadable."""
    found = in_the_tier()
    own = id_text(found.topic.topic_id)
    origin = TierOrigin(
        topic_id=found.topic.topic_id, partitions=4, leader_epoch=1, tiering=found.tiering
    )
    name = found.topic.name
    assert others([found], {}) == []
    assert others([found], {"other": body(topic_id="x")}) == []
    for restored in (body(topic_id=own), body(annotation=origin.text())):
        assert others([found], {name: restored}) == []
    for another in (body(), body(annotation="{}"), body(topic_id="x", annotation=origin.text())):
        (problem,) = others([found], {name: another})
        assert "Topic flights has the name flights but is not the topic in the tier" in problem
        assert own in problem


def test_a_topic_of_a_newer_version_is_refused_before_anything_is_changed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its producer ids are not known here, and the new cluster must not assign them again."""
    place, memory = TierPartition(), MemoryStore()
    with monkeypatch.context() as newer:
        newer.setattr(auxiliary, "_VERSION", 5)
        stored(place, memory, 1)
    # Another topic is readable.
    other = TierPartition(topic="orders", topic_id=uuid.UUID(int=99))
    stored(other, memory, 1)
    for topic in (place, other):
        described(topic, memory)
    tier, objects = tier_on(memory), dict(memory.objects)
    with pytest.raises(ObjectVersionUnsupported, match="format version 5"):
        checked(tier, {}, [])
    assert [topic.topic.name for topic in checked(tier, {}, ["orders"])] == ["orders"]
    assert memory.objects == objects
    # The version that knows the object restores both.
    monkeypatch.setattr(auxiliary, "_VERSION", 5)
    assert len(checked(tier, {}, [])) == 2
