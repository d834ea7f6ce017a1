"""Sweeper: finds, counts and removes objects of the store that no manifest names.

Copiers and deleters clean up after themselves. A process that is killed at the wrong moment, or an
upload that arrives after its entry was given up, still leaves objects behind. A sweep lists a page
of keys, then reads the heads of their partitions (``orphans`` explains this order), and continues
to the end of the store. It holds one page of keys in memory, however large the store is.

* Objects younger than the delay are counted and kept, for readers with an older plan.
* A folder whose partition has no head is reported and never swept: it may belong to another
  program, or its head may be missing and restored later.
* A partition whose manifest cannot be read is skipped and reported; so are uploads if the store
  does not allow listing them.
* Nothing is removed without the lease (``sweep_lease``), nor in a run that only reports.
"""

import itertools
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Self

from tidemark.reasons import Reason
from tidemark.tier.maintenance.key_references import ClassifiedItems, ReferenceClassifier
from tidemark.tier.maintenance.sweep_lease import SweepLease, SweepRemainder
from tidemark.tier.metadata.layout import DATA_PREFIX, PAGES_PREFIX
from tidemark.tier.open import Tier
from tidemark.tier.stores.objects import (
    DeletesRefused,
    ObjectInfo,
    ObjectStore,
    StoreUnavailable,
    UnfinishedUpload,
)

logger = logging.getLogger(__name__)

#: Keys that are looked at together: a page of LIST.
KEYS_AT_ONCE = 1000
#: Folders and troubles that a report names one by one.
NAMED_MAX = 100

_DAY_MS = 24 * 3600 * 1000
#: Reasons of errors after which a sweep continues without the uploads.
_WITHOUT_UPLOADS = frozenset(
    {Reason.STORE_ACCESS_DENIED, Reason.STORE_ERROR, Reason.STORE_NOT_IMPLEMENTED}
)


@dataclass(frozen=True, slots=True)
class _Item:
    """Object, or upload that has not ended (its key may be unknown: empty)."""

    key: str
    size_bytes: int
    at_ms: int
    upload: UnfinishedUpload | None = None

    @classmethod
    def of_object(cls, info: ObjectInfo) -> Self:
        """Return an object as an item; its age counts from its last change."""
        return cls(info.key, info.size_bytes, info.last_modified_ms)

    @classmethod
    def of_upload(cls, upload: UnfinishedUpload) -> Self:
        """Return an upload as an item; its size is not known."""
        return cls(upload.key, 0, upload.begun_ms, upload)

    @property
    def name(self) -> str:
        """Name of the item in messages: its key, or its upload."""
        if self.upload is None:
            return self.key
        return f"{self.key or 'temporary file'} (upload {self.upload.upload_id} not finished)"


_Judge = Callable[[Sequence[_Item]], ClassifiedItems[_Item]]


@dataclass(slots=True)
class ObjectTotals:
    """Number of objects or uploads, and their bytes as far as these are known."""

    count: int = 0
    size_bytes: int = 0

    def add(self, size_bytes: int) -> None:
        """Count one more item of this size."""
        self.count += 1
        self.size_bytes += size_bytes


@dataclass(slots=True)
class SweepReport:
    """Result of a sweep.

    ``orphans``: all items that no manifest names; ``waiting`` of them are younger than the delay,
    ``removed`` of them were removed. ``unknown``: folders without a head, with their number of
    objects. ``troubles``: messages about what could not be examined; ``passed_over`` counts them
    all.
    """

    looked_at: int = 0
    orphans: ObjectTotals = field(default_factory=ObjectTotals)
    waiting: ObjectTotals = field(default_factory=ObjectTotals)
    removed: ObjectTotals = field(default_factory=ObjectTotals)
    uploads: ObjectTotals = field(default_factory=ObjectTotals)
    uploads_removed: int = 0
    unknown: dict[str, int] = field(default_factory=dict)
    unknown_objects: int = 0
    troubles: list[str] = field(default_factory=list)
    passed_over: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def left(self) -> SweepRemainder:
        """Items that were found and not removed."""
        return SweepRemainder(
            orphans=self.orphans.count - self.removed.count,
            size_bytes=self.orphans.size_bytes - self.removed.size_bytes,
            uploads=self.uploads.count - self.uploads_removed,
            unknown=self.unknown_objects,
            passed_over=self.passed_over,
        )

    def of_unknown(self, folder: str) -> None:
        """Count one more object of a folder without a head."""
        self.unknown_objects += 1
        folder = _printable(folder)
        if folder in self.unknown or len(self.unknown) < NAMED_MAX:
            self.unknown[folder] = self.unknown.get(folder, 0) + 1

    def trouble(self, text: str) -> None:
        """Record that a partition, or a store's uploads, were skipped."""
        self.passed_over += 1
        if len(self.troubles) < NAMED_MAX:
            self.troubles.append(_printable(text))


class Sweeper:
    """One sweep of one tier, whose identity was verified.

    ``lease`` None: the run only reports, nothing is removed. ``progress`` receives the report after
    each page of keys; an exception that it raises ends the sweep.
    """

    def __init__(
        self,
        tier: Tier,
        *,
        now_ms: Callable[[], int],
        delay_ms: int,
        lease: SweepLease | None = None,
        progress: Callable[[SweepReport], None] = lambda _: None,
    ) -> None:
        """Start a sweep at the present time.

        ``now_ms``: wall clock. ``delay_ms``: age below which an object is kept, since its entry may
        not be committed yet. ``lease`` None: only report.
        """
        self._tier = tier
        self._naming = ReferenceClassifier(tier)
        self._lease = lease
        self._progress = progress
        # One moment for the whole sweep: anything that appears while it runs is too young.
        began_ms = now_ms()
        self._old_ms = began_ms - delay_ms
        # An upload without a key cannot be attributed to a partition, so it must be a day old.
        self._day_ago_ms = began_ms - _DAY_MS
        self.report = SweepReport()

    def run(self) -> SweepReport:
        """Sweep the whole store. Blocks.

        Raises StoreUnavailable if the store fails, SweepLeaseTaken if the lease was lost.
        """
        for store in self._tier.segments.stores.values():
            # Uploads, too, are listed before the heads are read.
            self._sweep_uploads(store)
            for objects in _chunks(map(_Item.of_object, store.list(DATA_PREFIX))):
                self._sweep(store, objects, self._naming.of_data)
        for pages in _chunks(map(_Item.of_object, self._tier.store.list(PAGES_PREFIX))):
            self._sweep(self._tier.store, pages, self._naming.of_pages)
        return self.report

    def _sweep_uploads(self, store: ObjectStore) -> None:
        try:
            for uploads in _chunks(map(_Item.of_upload, store.unfinished())):
                self._sweep(store, uploads, self._naming.of_data)
        except StoreUnavailable as error:
            # Some stores do not list uploads, or not for this account: report that, and sweep the
            # objects.
            if error.reason not in _WITHOUT_UPLOADS:
                raise
            self.report.trouble(str(error))

    def _sweep(self, store: ObjectStore, items: Sequence[_Item], judge: _Judge) -> None:
        """Process one page of a listing: classify its items, and remove orphans that are due.

        ``judge``: classifies items that have a key.
        """
        self.report.looked_at += len(items)
        judged = judge([item for item in items if item.key])
        for folder, _ in judged.unknown:
            self.report.of_unknown(folder)
        for trouble in judged.troubles:
            self.report.trouble(trouble)
        found = [*(item for item in items if not item.key), *judged.unnamed]
        due = [item for item in found if self._is_due(item)]
        if self._lease is not None:
            # Renew before each removal: another sweeper may own the store since the last page.
            self._lease.keep()
            self._remove(store, due)
        self._progress(self.report)

    def _is_due(self, item: _Item) -> bool:
        """Count the item; return whether it is old enough to be removed."""
        report = self.report
        (report.orphans if item.upload is None else report.uploads).add(item.size_bytes)
        if len(report.examples) < NAMED_MAX:
            report.examples.append(_printable(item.name))
        limit_ms = self._old_ms if item.key else min(self._old_ms, self._day_ago_ms)
        if item.at_ms > limit_ms:
            report.waiting.add(item.size_bytes)
            return False
        return True

    def _remove(self, store: ObjectStore, due: Sequence[_Item]) -> None:
        """Delete orphaned objects and abort orphaned uploads of one store, and count them.

        ``due``: the items to remove. An item with ``upload`` is a multipart upload, any other one
        an object. Refused deletes are reported and do not stop the sweep.
        """
        objects = [item.key for item in due if item.upload is None]
        refused: Collection[str] = ()
        try:
            if objects:
                # One request for up to a thousand keys. Keys that the store refuses stay and are
                # reported.
                store.delete_many(objects)
        except DeletesRefused as error:
            refused = error.refused
            self.report.trouble(str(error))
        # Uploads have no bulk request, so each one is aborted by itself.
        for item in due:
            if item.upload is None:
                if item.key not in refused:
                    self.report.removed.add(item.size_bytes)
            else:
                store.abort(item.upload)
                self.report.uploads_removed += 1
        if due:
            logger.info(
                "%s: removed %d orphans, %s among them", store.describe(), len(due), due[0].name
            )


def _printable(text: str) -> str:
    """Return the text with unprintable characters escaped: other writers of the store choose
    its names.
    """
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def _chunks(items: Iterable[_Item]) -> Iterator[Sequence[_Item]]:
    iterator = iter(items)
    while chunk := list(itertools.islice(iterator, KEYS_AT_ONCE)):
        yield chunk
