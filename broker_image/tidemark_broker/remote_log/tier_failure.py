"""What went wrong with a partition's tier: a CamelCase reason and a message for the Topic's
status."""

import random
from dataclasses import dataclass

from tidemark.reasons import Reason
from tidemark.tier.codec import ManifestCorrupt
from tidemark.tier.head import Diverged, ManifestError, ManifestFenced, TopicDeleted
from tidemark.tier.integrity import ObjectDamaged
from tidemark.tier.manifest import HeadNotFound, HeadWentBack, PageNotFound
from tidemark.tier.objects import ObjectNotFound, StoreUnavailable
from tidemark.wire.control import PAGE_NOT_FOUND, TIER_INTEGRITY
from tidemark_broker.log import LogError
from tidemark_broker.remote_log.thread_pools import PoolFull

#: What may go wrong; anything else is a mistake of ours, and tried again too.
RETRIED = (
    StoreUnavailable,
    ObjectNotFound,
    ManifestError,
    ManifestCorrupt,
    ObjectDamaged,
    LogError,
    PoolFull,
    OSError,
    ValueError,
)


class CustomMetadataTooLarge(Exception):
    """KIP-917: the storage manager returned more than the limit; copying of the partition stops."""


class LocalDataMissing(ValueError):
    """The local log does not hold what follows the tier's end: copying would leave a hole."""


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
    (OSError, Reason.STORAGE_ERROR),
)


@dataclass(frozen=True, slots=True)
class Failure:
    """``reason`` is CamelCase; ``message`` says what to do."""

    reason: str
    message: str


def failure_of(error: BaseException) -> Failure:
    """The store's own reason where it has one."""
    if isinstance(error, StoreUnavailable):
        return Failure(error.reason or Reason.REMOTE_STORAGE_UNAVAILABLE, str(error))
    reason = next(
        (name for kind, name in _REASONS if isinstance(error, kind)), Reason.REMOTE_LOG_ERROR
    )
    return Failure(reason, str(error) or type(error).__name__)


def jittered(pause_s: float, jitter: float) -> float:
    """The pause, up to ``jitter`` shorter or longer, so that brokers do not retry in step."""
    return pause_s * random.uniform(1 - jitter, 1 + jitter)
