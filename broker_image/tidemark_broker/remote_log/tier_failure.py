"""Failures of a partition's tier: a CamelCase reason and a message for the Topic's status."""

import random
from dataclasses import dataclass

from tidemark.reasons import Reason
from tidemark.tier.metadata.codec import ManifestCorrupt
from tidemark.tier.metadata.head import Diverged, ManifestError, ManifestFenced, TopicDeleted
from tidemark.tier.metadata.manifest import HeadNotFound, HeadWentBack, PageNotFound
from tidemark.tier.segments.integrity import ObjectDamaged
from tidemark.tier.segments.local_segment import LocalLogDamaged
from tidemark.tier.stores.objects import ObjectNotFound, StoreUnavailable
from tidemark.wire.control import PAGE_NOT_FOUND, TIER_INTEGRITY
from tidemark_broker.log import LogError
from tidemark_broker.replication.threads import ThreadsBusy

#: Expected errors; any other is a defect, logged with a traceback and also retried.
RETRIED = (
    StoreUnavailable,
    ObjectNotFound,
    ManifestError,
    ManifestCorrupt,
    ObjectDamaged,
    LogError,
    ThreadsBusy,
    OSError,
    ValueError,
)


class CustomMetadataTooLarge(Exception):
    """The storage manager returned more custom metadata than the limit (KIP-917).

    The partition is not copied any more.
    """


class LocalDataMissing(ValueError):
    """The local log lacks the records after the tier's end: copying would leave a hole."""


_REASONS: tuple[tuple[type[BaseException], Reason], ...] = (
    (CustomMetadataTooLarge, Reason.CUSTOM_METADATA_TOO_LARGE),
    (LocalDataMissing, Reason.LOCAL_DATA_MISSING),
    (HeadNotFound, Reason.MANIFEST_NOT_FOUND),
    (HeadWentBack, TIER_INTEGRITY),
    (PageNotFound, PAGE_NOT_FOUND),
    (ManifestCorrupt, Reason.MANIFEST_CORRUPT),
    (ObjectDamaged, TIER_INTEGRITY),
    (Diverged, Reason.LOG_DIVERGED),
    (ManifestFenced, Reason.FENCED),
    (TopicDeleted, Reason.TOPIC_DELETED),
    (ManifestError, Reason.MANIFEST_REFUSED),
    (ObjectNotFound, Reason.REMOTE_OBJECT_MISSING),
    (LogError, Reason.STORAGE_ERROR),
    (LocalLogDamaged, Reason.STORAGE_ERROR),
    (OSError, Reason.STORAGE_ERROR),
)


@dataclass(frozen=True, slots=True)
class TierFailure:
    """Failure with a CamelCase ``reason`` and a ``message`` that has the remedy."""

    reason: str
    message: str


def failure_of(error: BaseException) -> TierFailure:
    """Return the failure of an error, with the store's own reason if it has one."""
    if isinstance(error, StoreUnavailable):
        return TierFailure(error.reason or Reason.REMOTE_STORAGE_UNAVAILABLE, str(error))
    reason = next(
        (name for kind, name in _REASONS if isinstance(error, kind)), Reason.REMOTE_LOG_ERROR
    )
    return TierFailure(reason, str(error) or type(error).__name__)


def jittered(pause_s: float, jitter: float) -> float:
    """Return the pause, up to ``jitter`` shorter or longer, so that brokers do not retry in
    step.
    """
    return pause_s * random.uniform(1 - jitter, 1 + jitter)
