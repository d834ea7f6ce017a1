"""Uploads under way in this process, and what becomes of one whose copy was given up meanwhile.

An upload runs in a thread and cannot be stopped: it may outlive its term, and then put objects
where somebody has just deleted them. Two rules keep that from leaving orphans (invariant 10). While
an upload runs here, nobody here deletes its objects. And when one has ended whose copy failed, or
was cancelled or fenced, the head is read: if its entry is marked there, or gone, then nothing will
ever refer to what was stored, and it is deleted at once; if it still counts as being copied, the
next claim marks it.
"""

import asyncio
import logging
import uuid
from dataclasses import dataclass

from tidemark.tier.head import ManifestError
from tidemark.tier.objects import StoreError
from tidemark.tier.open import Tier
from tidemark.tier.remote_storage_manager import Copied, SegmentData
from tidemark.tier.segment import SegmentEntry, SegmentState
from tidemark_broker.remote_log.thread_pools import Pool, PoolFull, soon

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upload:
    """One attempt at copying a segment of a partition."""

    tier: Tier
    topic_id: uuid.UUID
    partition: int
    entry: SegmentEntry


class Uploads:
    """The loop's thread owns it; ``in`` may be asked from any thread. Uploads run in ``copier``,
    what was given up is looked at in ``expiration``."""

    def __init__(self, copier: Pool, expiration: Pool) -> None:
        self._copier = copier
        self._expiration = expiration
        self._running: set[uuid.UUID] = set()

    def __contains__(self, segment_id: uuid.UUID) -> bool:
        return segment_id in self._running

    async def run(self, upload: Upload, data: SegmentData) -> Copied:
        """What the storage manager says of the copy. A cancelled caller leaves the upload to end by
        itself."""
        loop, segment_id = asyncio.get_running_loop(), upload.entry.segment_id
        work = self._copier.submit(upload.tier.segments.copy_segment, upload.entry, data)
        self._running.add(segment_id)
        # Also called where it is cancelled before it began.
        work.add_done_callback(lambda _: self._running.discard(segment_id))
        try:
            return await asyncio.wrap_future(work)
        except asyncio.CancelledError:
            work.add_done_callback(lambda _: soon(loop, lambda: self.given_up(upload)))
            raise
        except Exception:
            self.given_up(upload)
            raise

    def given_up(self, upload: Upload) -> None:
        """An upload has ended, and its copy failed or was cancelled or fenced: see the module."""
        try:
            self._expiration.submit(drop_if_unreferenced, upload)
        except PoolFull:
            logger.info("%s: left to whoever claims the manifest next", upload.entry.key)


def drop_if_unreferenced(upload: Upload) -> bool:
    """Delete what an abandoned upload stored, unless the manifest refers to it or still may; best
    effort (blocks). Whether it was deleted."""
    entry = upload.entry
    try:
        if _is_referred_to(upload):
            return False
        upload.tier.segments.delete([entry])
    except (StoreError, ManifestError, OSError) as error:
        logger.warning("%s may be left behind by a copy that was given up: %s", entry.key, error)
        return False
    logger.info("%s: deleted, its copy was given up while it was uploaded", entry.key)
    return True


def _is_referred_to(upload: Upload) -> bool:
    manifests, segment_id = upload.tier.manifests, upload.entry.segment_id
    head = manifests.load(upload.topic_id, upload.partition).head
    for entry in head.entries:
        if entry.segment_id == segment_id:
            return entry.state is not SegmentState.DELETE_STARTED
    end = upload.entry.end_offset_inclusive
    pages = manifests.pages(upload.topic_id, upload.partition)
    return any(
        entry.segment_id == segment_id
        for ref in head.pages
        if ref.first_end_offset_inclusive <= end <= ref.end_offset_inclusive
        for entry in pages[ref.name].entries
    )
