"""Keys of one object store, relative to its prefix.

    tidemark.json                                               identity of the store
    sweep.json                                                  lease of the broker that sweeps it
    audit.json                                                  findings of audits, by topic
    heads/<topicId>/<partition>.json                            head of a partition's manifest
    pages/<topicId>/<partition>/<seq>-<uuid>.json               sealed page of older entries
    probes/<uuid>                                               of a probe under way
    topics/<topicId>.json                                       name, configuration, partitions
    data/<topic>-<topicId>/<partition>/<start>-<segmentId>.log  a copied segment
    data/<topic>-<topicId>/<partition>/<start>-<segmentId>.aux  its indexes and snapshots

Ids are written as Kafka writes them (:mod:`tidemark.ids`). Heads and pages have prefixes of their
own, so that a listing of data objects does not return them, and the other way round.
"""

import functools
import uuid
from dataclasses import dataclass

from tidemark.ids import id_text, parse_id

IDENTITY_KEY = "tidemark.json"
SWEEP_KEY = "sweep.json"
AUDIT_KEY = "audit.json"
TOPICS_PREFIX = "topics/"
HEADS_PREFIX = "heads/"
DATA_PREFIX = "data/"
PAGES_PREFIX = "pages/"
PROBES_PREFIX = "probes/"
LOG_SUFFIX = ".log"
AUX_SUFFIX = ".aux"
_JSON = ".json"


def heads_prefix(topic_id: uuid.UUID) -> str:
    """Return the folder of the heads of one topic."""
    return f"{HEADS_PREFIX}{id_text(topic_id)}/"


def head_key(topic_id: uuid.UUID, partition: int) -> str:
    """Return the key of one partition's head."""
    return f"{heads_prefix(topic_id)}{partition}{_JSON}"


def partition_of_head(key: str) -> int:
    """Return the partition that a head's key names. Raises ValueError for another key."""
    return int(key.rsplit("/", 1)[1].removesuffix(_JSON))


def topic_pages_prefix(topic_id: uuid.UUID) -> str:
    """Return the folder of the sealed pages of one topic."""
    return f"{PAGES_PREFIX}{id_text(topic_id)}/"


def pages_prefix(topic_id: uuid.UUID, partition: int) -> str:
    """Return the folder of the sealed pages of one partition."""
    return f"{topic_pages_prefix(topic_id)}{partition}/"


def page_key(topic_id: uuid.UUID, partition: int, name: str) -> str:
    """Return the key of a sealed page; ``name`` comes from ``page_name``."""
    return f"{pages_prefix(topic_id, partition)}{name}{_JSON}"


def page_name(sequence: int, unique: uuid.UUID) -> str:
    """Return a name that no other page has had: pages are immutable, so a name never gets a new
    body.
    """
    return f"{sequence:08d}-{id_text(unique)}"


def topic_key(topic_id: uuid.UUID) -> str:
    """Return the key of the topic object."""
    return f"{TOPICS_PREFIX}{id_text(topic_id)}{_JSON}"


@functools.lru_cache(maxsize=64)
def topic_data_prefix(topic: str, topic_id: uuid.UUID) -> str:
    """Folder of all data objects of a topic: empty when nothing of it is left."""
    return f"{DATA_PREFIX}{topic}-{id_text(topic_id)}/"


def partition_data_prefix(topic: str, topic_id: uuid.UUID, partition: int) -> str:
    """Folder of the data objects of one partition."""
    return f"{topic_data_prefix(topic, topic_id)}{partition}/"


def segment_key(
    topic: str, topic_id: uuid.UUID, partition: int, start_offset: int, segment_id: uuid.UUID
) -> str:
    """Key of a segment's two objects, without their suffixes."""
    # The offset is padded, so that a listing returns segments in their order.
    folder = partition_data_prefix(topic, topic_id, partition)
    return f"{folder}{start_offset:020d}-{id_text(segment_id)}"


@dataclass(frozen=True, slots=True)
class KeyLocation:
    """Content of the key of a data object or of a page.

    ``folder``: the topic's. ``name``: the segment's key without suffix, or the page's name, as
    manifests have it. ``number``: a segment's start offset, or a page's sequence.
    """

    folder: str
    topic_id: uuid.UUID
    partition: int
    name: str
    number: int


def place_of_data(key: str) -> KeyLocation:
    """Inverse of ``segment_key`` with a suffix. Raises ValueError for another key."""
    name = next((key.removesuffix(e) for e in (LOG_SUFFIX, AUX_SUFFIX) if key.endswith(e)), key)
    _, folder, partition, file = _four_parts(name)
    start, _, segment = file.partition("-")
    topic, topic_id = folder[: -_ID_LENGTH - 1], parse_id(folder[-_ID_LENGTH:])
    # Building the key again refuses every other spelling of it.
    made = segment_key(topic, topic_id, int(partition), int(start), parse_id(segment))
    if name == key or made != name:
        raise ValueError(f"{key!r} is no key of a segment")
    return KeyLocation(
        topic_data_prefix(topic, topic_id), topic_id, int(partition), name, int(start)
    )


def place_of_page(key: str) -> KeyLocation:
    """Inverse of ``page_key``. Raises ValueError for another key."""
    _, topic, partition, file = _four_parts(key)
    name, topic_id = file.removesuffix(_JSON), parse_id(topic)
    sequence, _, unique = name.partition("-")
    made = page_key(topic_id, int(partition), page_name(int(sequence), parse_id(unique)))
    if made != key:
        raise ValueError(f"{key!r} is no key of a page")
    return KeyLocation(topic_pages_prefix(topic_id), topic_id, int(partition), name, int(sequence))


_ID_LENGTH = 22


def _four_parts(key: str) -> tuple[str, str, str, str]:
    parts = key.split("/")
    if len(parts) != 4:
        raise ValueError(f"{key!r} does not lie where the tier's objects lie")
    return parts[0], parts[1], parts[2], parts[3]
