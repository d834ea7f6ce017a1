"""Uploads in progress in this process, and the cleanup of abandoned ones.

An upload runs in a thread and cannot be stopped. It may outlive its term, and then store objects
that were just deleted. Two rules prevent orphans (invariant 10). While an upload runs here, this
broker does not delete its objects. When an upload has ended whose copy failed, or was cancelled or
fenced, the head is read. If its entry is marked or missing there, nothing will ever refer to the
objects, and they are deleted at once. If the entry is still being copied, the next claim marks it.
"""

import asyncio
import logging
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from tidemark.tier.metadata.head import ManifestError
from tidemark.tier.metadata.segment import SegmentEntry, SegmentState
from tidemark.tier.open import Tier
from tidemark.tier.segments.remote_storage_manager import Copied
from tidemark.tier.stores.objects import StoreError
from tidemark_broker.replication.threads import ThreadPool, ThreadsBusy, soon

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Upload:
    """One attempt to copy a segment of a partition."""

    tier: Tier
    topic_id: uuid.UUID
    partition: int
    entry: SegmentEntry


class Uploads:
    """Uploads in progress, owned by the loop's thread; ``in`` is safe in any thread.

    Uploads run in ``copier``, the cleanup in ``expiration``.
    """

    def __init__(self, copier: ThreadPool, expiration: ThreadPool) -> None:
        self._copier = copier
        self._expiration = expiration
        self._running: set[uuid.UUID] = set()

    def __contains__(self, segment_id: uuid.UUID) -> bool:
        return segment_id in self._running

    async def run(self, upload: Upload, work: Callable[[], Copied]) -> Copied:
        """Upload a segment's objects by ``work`` in the copier's pool; return the storage manager's
        result.

        A running upload cannot be stopped. If the caller is cancelled or the upload fails, its
        objects are cleaned up after it has ended (:meth:`given_up`).
        """
        loop, segment_id = asyncio.get_running_loop(), upload.entry.segment_id
        call = self._copier.submit(work)
        self._running.add(segment_id)
        # Also called if the upload is cancelled before it starts.
        call.add_done_callback(lambda _: self._running.discard(segment_id))
        try:
            return await asyncio.wrap_future(call)
        except asyncio.CancelledError:
            call.add_done_callback(lambda _: soon(loop, lambda: self.given_up(upload)))
            raise
        except Exception:
            self.given_up(upload)
            raise

    def given_up(self, upload: Upload) -> None:
        """Clean up after an upload whose copy failed or was cancelled or fenced; see the module."""
        try:
            self._expiration.submit(partial(drop_if_unreferenced, upload))
        except ThreadsBusy:
            logger.info("%s: its cleanup is left to the next claim", upload.entry.key)


def drop_if_unreferenced(upload: Upload) -> bool:
    """Delete the objects of an abandoned upload unless the manifest may still use them (blocking).

    Best effort: an error is logged. Return whether they were deleted.
    """
    entry = upload.entry
    try:
        # Another attempt has its own segment id, so only this entry counts.
        if _is_referred_to(upload):
            return False
        upload.tier.segments.delete([entry])
    except (StoreError, ManifestError, OSError) as error:
        logger.warning("%s may remain after an abandoned copy: %s", entry.key, error)
        return False
    logger.info("%s: deleted, because its copy was abandoned during the upload", entry.key)
    return True


def _is_referred_to(upload: Upload) -> bool:
    """Return whether the manifest has the upload's entry, other than as a marked one."""
    manifests, segment_id = upload.tier.manifests, upload.entry.segment_id
    head = manifests.load(upload.topic_id, upload.partition).head
    for entry in head.entries:
        if entry.segment_id == segment_id:
            # A marked entry is deleted later anyway; the late objects can go now.
            return entry.state is not SegmentState.DELETE_STARTED
    # A finished copy may have moved to a sealed page meanwhile.
    end = upload.entry.end_offset_inclusive
    pages = manifests.pages(upload.topic_id, upload.partition)
    return any(
        entry.segment_id == segment_id
        for ref in head.pages
        if ref.first_end_offset_inclusive <= end <= ref.end_offset_inclusive
        for entry in pages[ref.name].entries
    )
