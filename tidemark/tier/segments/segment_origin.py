"""Origin of a copied segment: the manifest's entry of its copy, and the head's version then.

It is stored in the segment's auxiliary object, which proves two things without a manifest. First, a
head with a lower version than the recorded one is older than the object. If the object was listed
before the head was read, the head went back. Second, the recorded entry, the object and a listing
contain all that a manifest says of the segment. So the segment can be added to a head that went
back.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemark.ids import id_text, parse_id
from tidemark.tier.metadata.codec import decode_entry, encode_entry
from tidemark.tier.metadata.layout import AUX_SUFFIX
from tidemark.tier.metadata.segment import Digests, SegmentEntry, SegmentState
from tidemark.tier.segments.auxiliary import AuxCorrupt, check_version, unpack_opened
from tidemark.tier.segments.integrity import digest_of, log_digest
from tidemark.tier.segments.remote_storage_manager import encode_custom_metadata
from tidemark.tier.segments.sealing import open_aux
from tidemark.tier.stores.key_ring import KeyRing
from tidemark.tier.stores.objects import ObjectNotFound, ObjectStore, ObjectTooLarge


@dataclass(frozen=True, slots=True)
class SegmentOrigin:
    """Version of the head that first named a segment, and the segment's entry in that head."""

    head_version: int
    entry: SegmentEntry


def encode_origin(
    entry: SegmentEntry, head_version: int, topic: str, topic_id: uuid.UUID, partition: int
) -> bytes:
    """Encode the section of the auxiliary object."""
    fields = {
        "headVersion": head_version,
        "topic": topic,
        "topicId": id_text(topic_id),
        "partition": partition,
        "entry": encode_entry(entry),
    }
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def read_origin(
    store: ObjectStore, keys: KeyRing, bucket: str, key: str, log_bytes: int
) -> tuple[SegmentOrigin, SegmentEntry] | None:
    """Read a copy's origin (entry and head version at its start) from its auxiliary object.

    ``keys``: to decrypt it. ``key``: of the segment, without suffix. ``log_bytes``: size of its log
    as listed. Returns the origin, and the entry that a manifest would have for the finished copy.
    None if the copy is not complete, or if the version of Tidemark that made it recorded no origin.
    Blocks. Raises StoreUnavailable, which is SegmentUnreadable if its encryption key is missing or
    its version is newer.
    """
    try:
        data = store.get(key + AUX_SUFFIX).data
        opened = open_aux(data, key, keys)
        check_version(opened.packed, key)
        aux = unpack_opened(opened, key)
        origin = _decode(aux.origin) if aux.origin else None
    except (ObjectNotFound, ObjectTooLarge, AuxCorrupt, ValueError, KeyError, TypeError):
        return None
    # The recorded entry must be of this object: a copied or cut object proves nothing.
    frames_bytes = None if aux.frames is None else aux.frames.stored_bytes
    if origin is None or origin.entry.key != key:
        return None
    if log_bytes != (origin.entry.size_bytes if frames_bytes is None else frames_bytes):
        return None
    # The origin was written at the start of the copy, so the results of the copy are added.
    finished = replace(
        origin.entry,
        state=SegmentState.COPY_FINISHED,
        custom_metadata=encode_custom_metadata(bucket, log_bytes + len(data), frames_bytes),
        digests=Digests(
            aux.algorithm,
            log_digest(aux.pieces, aux.algorithm),
            digest_of(opened.packed, aux.algorithm),
        ),
    )
    return origin, finished


def origin_version(stores: Iterable[ObjectStore], keys: KeyRing, key: str) -> int | None:
    """Return the version of the head under which the copy of a segment started.

    ``keys``: to decrypt it. ``key``: of the segment, without suffix. 0 if its auxiliary object is
    missing or damaged, because the segment is unreadable then. None if the object records no
    version. Blocks. Raises StoreUnavailable as :func:`read_origin` does.
    """
    # The bucket of an unnamed segment is not known, so each one is tried.
    for store in stores:
        try:
            opened = open_aux(store.get(key + AUX_SUFFIX).data, key, keys)
            check_version(opened.packed, key)
            aux = unpack_opened(opened, key)
        except ObjectNotFound:
            continue
        except (ObjectTooLarge, AuxCorrupt, ValueError):
            return 0
        try:
            return _decode(aux.origin).head_version if aux.origin else None
        except (ValueError, KeyError, TypeError):
            return None
    return 0


def _decode(data: bytes) -> SegmentOrigin:
    fields = json.loads(data)
    entry = decode_entry(
        fields["entry"], str(fields["topic"]), parse_id(fields["topicId"]), int(fields["partition"])
    )
    return SegmentOrigin(int(fields["headVersion"]), entry)
