"""What went wrong with a partition's tier: a CamelCase reason and a message for the Topic's
status."""

import random
from dataclasses import dataclass

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

_REASONS: tuple[tuple[type[BaseException], str], ...] = (
    (HeadNotFound, "ManifestNotFound"),
    (HeadWentBack, TIER_INTEGRITY),
    (PageNotFound, PAGE_NOT_FOUND),
    (ManifestCorrupt, "ManifestCorrupt"),
    (ObjectDamaged, TIER_INTEGRITY),
    (Diverged, "LogDiverged"),
    (ManifestFenced, "Fenced"),
    (TopicDeleted, "TopicDeleted"),
    (ManifestError, "ManifestRefused"),
    (ObjectNotFound, "RemoteObjectMissing"),
    (LogError, "StorageError"),
    (OSError, "StorageError"),
)


class CustomMetadataTooLarge(Exception):
    """KIP-917: the storage manager returned more than the limit; copying of the partition stops."""


class LocalDataMissing(ValueError):
    """The local log does not hold what follows the tier's end: copying would leave a hole."""


@dataclass(frozen=True, slots=True)
class Failure:
    """``reason`` is CamelCase; ``message`` says what to do."""

    reason: str
    message: str


def failure_of(error: BaseException) -> Failure:
    """The store's own reason where it has one."""
    if isinstance(error, StoreUnavailable):
        return Failure(error.reason or "RemoteStorageUnavailable", str(error))
    if isinstance(error, CustomMetadataTooLarge | LocalDataMissing):
        return Failure(type(error).__name__, str(error))
    reason = next((name for kind, name in _REASONS if isinstance(error, kind)), "RemoteLogError")
    return Failure(reason, str(error) or type(error).__name__)


def jittered(pause_s: float, jitter: float) -> float:
    """The pause, up to ``jitter`` shorter or longer, so that brokers do not retry in step."""
    return pause_s * random.uniform(1 - jitter, 1 + jitter)
