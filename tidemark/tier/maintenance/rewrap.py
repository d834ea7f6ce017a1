"""Rotation of the key-encryption key: encrypt the keys of all segments with the active one.

Only auxiliary objects change, by compare-and-set, and of those only the header (``sealing``). Logs
are neither read nor written. An object that is deleted meanwhile stays deleted. The work can be
interrupted at any point and repeated. It needs no manifest, no broker and no lease.
"""

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from tidemark.tier.metadata.layout import AUX_SUFFIX, DATA_PREFIX
from tidemark.tier.open import Tier
from tidemark.tier.segments.sealing import (
    HEADER_BYTES,
    has_active_key,
    is_sealed,
    key_id_of,
    rewrapped,
)
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.key_ring import KeyRing
from tidemark.tier.stores.objects import (
    ObjectNotFound,
    ObjectStore,
    ObjectTooLarge,
    PreconditionFailed,
    SegmentUnreadable,
)

#: Segments that are listed together, and then reported by ``progress``.
_PAGE_SEGMENTS = 1000
_THREADS = 16
#: Failures that a report names one by one.
NAMED_MAX = 100


@dataclass(slots=True)
class RewrapReport:
    """Result of a rotation.

    ``segments``: by the id of the key-encryption key that they have at the end, "" for segments
    that are not encrypted. ``rewrapped`` of them got the active key. ``failures``: messages about
    segments that could not be changed; ``failed`` counts them all.
    """

    segments: Counter[str] = field(default_factory=Counter)
    rewrapped: int = 0
    failures: list[str] = field(default_factory=list)
    failed: int = 0

    @property
    def examined(self) -> int:
        """Number of segments that were examined."""
        return self.segments.total() + self.failed

    def add(self, outcome: "_Outcome") -> None:
        """Count a segment by its key, or record why it could not be changed."""
        if outcome.failure:
            self.failed += 1
            if len(self.failures) < NAMED_MAX:
                self.failures.append(outcome.failure)
        elif outcome.key_id is not None:
            self.segments[outcome.key_id] += 1
            self.rewrapped += outcome.is_rewrapped


class _Outcome(NamedTuple):
    """Id of a segment's key at the end ("" for none, None if it was deleted), or the failure."""

    key_id: str | None = None
    is_rewrapped: bool = False
    failure: str = ""


def rewrap(
    tier: Tier, *, dry_run: bool = False, progress: Callable[[RewrapReport], None] = lambda _: None
) -> RewrapReport:
    """Give every encrypted segment of the tier the active key-encryption key. Blocks.

    ``dry_run``: only count the segments by their keys. ``progress`` receives the report from time
    to time. Raises StoreUnavailable if the store fails. A segment that cannot be changed, for
    example because its key is missing, is a failure in the report.
    Raises InvalidConfig without an active key.
    """
    report, keys = RewrapReport(), tier.segments.keys
    # Counting needs no key, because headers name the key in the clear.
    if not dry_run and not keys.active_id:
        raise InvalidConfig(
            "there is no active encryption key. Name the file with the keys (--encryption-keys). "
            "Its first line must be the new key"
        )
    # A request waits for the store most of the time, so several segments are processed at once. A
    # limited number of keys is in memory, however many segments there are.
    with ThreadPoolExecutor(_THREADS, "rewrap") as pool:
        for store in tier.segments.stores.values():
            listed = _auxiliary_keys(store)
            while page := list(itertools.islice(listed, _PAGE_SEGMENTS)):
                one = partial(_rewrapped, store, keys, dry_run=dry_run)
                for outcome in pool.map(one, page):
                    report.add(outcome)
                progress(report)
    return report


def _auxiliary_keys(store: ObjectStore) -> Iterator[str]:
    return (info.key for info in store.list(DATA_PREFIX) if info.key.endswith(AUX_SUFFIX))


def _rewrapped(store: ObjectStore, keys: KeyRing, key: str, *, dry_run: bool) -> _Outcome:
    """Examine one auxiliary object, and change its header if necessary."""
    try:
        # The header shows whether there is anything to do, so usually little is read.
        header = bytes(store.get_range(key, 0, HEADER_BYTES))
        if not is_sealed(header):
            return _Outcome("")
        segment_key = key.removesuffix(AUX_SUFFIX)
        key_id = key_id_of(header, segment_key)
        is_active = has_active_key(header, segment_key, keys)
        if dry_run or is_active:
            # The name would say that the active key suffices, though its bytes were changed.
            is_other = key_id == keys.active_id and not is_active
            return _Outcome(f"{key_id} with other bytes" if is_other else key_id)
        before = store.get(key)
        after = rewrapped(before.data, segment_key, keys)
        store.replace(key, after, before.version)
    # Deleted since the listing. Another rotation may have been faster, with the same result.
    except (ObjectNotFound, PreconditionFailed):
        return _Outcome()
    except (SegmentUnreadable, ObjectTooLarge, ValueError) as error:
        return _Outcome(failure=f"{key}: {error}")
    return _Outcome(keys.active_id, is_rewrapped=True)
