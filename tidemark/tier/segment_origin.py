"""Origin of a copied segment: the manifest's entry of its copy, and the head's version then.

It is stored in the segment's auxiliary object, so that the object itself tells two things without
any manifest. The copy began under a head of that version, so a head of a lower one is older than
the object, though the object was listed before the head was read: the head has gone back. And the
entry, with what the object and a listing say, is all that a manifest has to say of the segment: a
head that went back can be given the segment again.
"""

import json
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, replace

from tidemark.ids import id_text, parse_id
from tidemark.tier.auxiliary import AuxCorrupt, unpack
from tidemark.tier.codec import decode_entry, encode_entry
from tidemark.tier.integrity import digest_of, log_digest
from tidemark.tier.layout import AUX_SUFFIX
from tidemark.tier.objects import ObjectNotFound, ObjectStore, ObjectTooLarge
from tidemark.tier.remote_storage_manager import encode_custom_metadata
from tidemark.tier.segment import Digests, SegmentEntry, SegmentState


@dataclass(frozen=True, slots=True)
class SegmentOrigin:
    """``head_version``: of the head that first named the segment; ``entry``: as it stood there."""

    head_version: int
    entry: SegmentEntry


def encode_origin(
    entry: SegmentEntry, head_version: int, topic: str, topic_id: uuid.UUID, partition: int
) -> bytes:
    """The section of the auxiliary object."""
    fields = {
        "headVersion": head_version,
        "topic": topic,
        "topicId": id_text(topic_id),
        "partition": partition,
        "entry": encode_entry(entry),
    }
    return json.dumps(fields, separators=(",", ":")).encode("utf-8")


def read_origin(
    store: ObjectStore, bucket: str, key: str, log_bytes: int
) -> tuple[SegmentOrigin, SegmentEntry] | None:
    """Origin of the segment ``key`` (without suffix), and its entry as it would stand in a manifest
    once the copy is finished; ``log_bytes``: size of its log as listed. None where the objects are
    not a whole copy, or of a version of Tidemark that recorded no origin. Blocks; raises
    StoreUnavailable."""
    try:
        data = store.get(key + AUX_SUFFIX).data
        aux = unpack(data, key)
        origin = _decode(aux.origin) if aux.origin else None
    except (ObjectNotFound, ObjectTooLarge, AuxCorrupt, ValueError, KeyError, TypeError):
        return None
    if origin is None or origin.entry.key != key or origin.entry.size_bytes != log_bytes:
        return None
    finished = replace(
        origin.entry,
        state=SegmentState.COPY_FINISHED,
        custom_metadata=encode_custom_metadata(bucket, log_bytes + len(data)),
        digests=Digests(log_digest(aux.pieces), digest_of(data)),
    )
    return origin, finished


def origin_version(stores: Iterable[ObjectStore], key: str) -> int | None:
    """Version of the head under which the copy of the segment ``key`` (without suffix) began: 0
    where it has no auxiliary object that can be read, so that nobody can read the segment; None
    where that does not say. Blocks; raises StoreUnavailable."""
    for store in stores:
        try:
            aux = unpack(store.get(key + AUX_SUFFIX).data, key)
        except ObjectNotFound:
            continue
        except (ObjectTooLarge, AuxCorrupt):
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
