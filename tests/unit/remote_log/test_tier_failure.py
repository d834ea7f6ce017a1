"""Every failure of a partition's tier has a reason that the reference of conditions explains."""

import pytest

from tidemark.reason_table import TIER
from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.head import Diverged, IllegalTransition, ManifestFenced, TopicDeleted
from tidemark.tier.metadata.manifest import HeadNotFound, PageNotFound
from tidemark.tier.segments.integrity import ObjectDamaged
from tidemark.tier.stores.objects import ObjectNotFound, StoreUnavailable
from tidemark_broker.log import LogError
from tidemark_broker.remote_log.tier_failure import (
    CustomMetadataTooLarge,
    LocalDataMissing,
    failure_of,
    jittered,
)

CASES = {
    "ManifestNotFound": HeadNotFound("x"),
    "ManifestPageNotFound": PageNotFound("x"),
    "ManifestCorrupt": ManifestCorrupt("x"),
    "TierIntegrity": ObjectDamaged("x"),
    "LogDiverged": Diverged("x"),
    "Fenced": ManifestFenced("x"),
    "TopicDeleted": TopicDeleted("x"),
    "ManifestRefused": IllegalTransition("x"),
    "RemoteObjectMissing": ObjectNotFound("x"),
    "StorageError": LogError("x"),
    "CustomMetadataTooLarge": CustomMetadataTooLarge("x"),
    "LocalDataMissing": LocalDataMissing("x"),
    "StoreFull": StoreUnavailable("x", reason="StoreFull", retriable=True),
    "RemoteStorageUnavailable": StoreUnavailable("x", reason="", retriable=True),
    "RemoteLogError": ZeroDivisionError("x"),
}


@pytest.mark.parametrize("reason", CASES)
def test_every_error_has_a_documented_reason(reason: str) -> None:
    failure = failure_of(CASES[reason])
    assert (failure.reason, failure.message) == (reason, "x")
    # TIER has the condition reasons that the operator publishes.
    assert reason in TIER


def test_an_os_error_is_a_storage_error() -> None:
    assert failure_of(OSError(28, "No space left on device")).reason == "StorageError"


def test_an_error_without_a_message_shows_its_class() -> None:
    assert failure_of(ZeroDivisionError()).message == "ZeroDivisionError"


def test_pauses_vary_by_the_jitter() -> None:
    pauses = {jittered(10.0, 0.2) for _ in range(50)}
    assert len(pauses) > 1
    assert all(8.0 <= pause <= 12.0 for pause in pauses)
