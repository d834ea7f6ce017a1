"""The record of audits in a real MinIO: conditional writes, and a bounded read."""

import uuid

import pytest

from tidemark.tier.maintenance.audit_record import (
    BYTES_MAX,
    AuditUnreadable,
    TopicAudit,
    read_record,
    write_record,
)
from tidemark.tier.metadata.layout import AUDIT_KEY
from tidemark.tier.open import open_store
from tidemark.tier.stores.s3_config import S3Config


def audit(number: int) -> TopicAudit:
    return TopicAudit(
        topic_id=uuid.UUID(int=number),
        name="flights",
        at_ms=number,
        by="tidemark-1.2.3",
        manifests=1,
        versions=(1, 1),
        segments=1,
        size_bytes=1,
    )


def test_audits_are_recorded_side_by_side_and_an_oversized_record_is_rewritten(
    config: S3Config,
) -> None:
    store = open_store(config)
    assert read_record(store).topics == {}
    # Two audits of different topics must not overwrite each other.
    for number in (1, 2):
        write_record(store, [audit(number)], replaces_all=False)
    assert {topic.int for topic in read_record(store).topics} == {1, 2}
    # A record above the limit is not read, and the next audit replaces it.
    store.put(AUDIT_KEY, bytes(BYTES_MAX + 1))
    with pytest.raises(AuditUnreadable, match="more than"):
        read_record(store)
    write_record(store, [audit(3)], replaces_all=False)
    assert {topic.int for topic in read_record(store).topics} == {3}
