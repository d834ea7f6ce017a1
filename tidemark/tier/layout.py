"""Where everything of the tier lies: the keys of one object store, relative to its prefix.

    tidemark.json                                               identity of the store
    heads/<topicId>/<partition>.json                            head of a partition's manifest
    pages/<topicId>/<partition>/<seq>-<uuid>.json               sealed page of older entries
    topics/<topicId>.json                                       name, configuration, partitions
    data/<topic>-<topicId>/<partition>/<start>-<segmentId>.log  a copied segment
    data/<topic>-<topicId>/<partition>/<start>-<segmentId>.aux  all that belongs to it

Ids are written as Kafka writes them (:mod:`tidemark.ids`). Heads and pages lie
under prefixes of their own, so that listing data never meets them and the other way round.
"""

import uuid

from tidemark.ids import id_text

IDENTITY_KEY = "tidemark.json"
TOPICS_PREFIX = "topics/"
HEADS_PREFIX = "heads/"
LOG_SUFFIX = ".log"
AUX_SUFFIX = ".aux"
_JSON = ".json"


def heads_prefix(topic_id: uuid.UUID) -> str:
    """Folder of the heads of one topic."""
    return f"{HEADS_PREFIX}{id_text(topic_id)}/"


def head_key(topic_id: uuid.UUID, partition: int) -> str:
    """The head object of one partition."""
    return f"{heads_prefix(topic_id)}{partition}{_JSON}"


def partition_of_head(key: str) -> int:
    """The partition that a head's key names. Raises ValueError for another key."""
    return int(key.rsplit("/", 1)[1].removesuffix(_JSON))


def topic_pages_prefix(topic_id: uuid.UUID) -> str:
    """Folder of the sealed pages of one topic."""
    return f"pages/{id_text(topic_id)}/"


def pages_prefix(topic_id: uuid.UUID, partition: int) -> str:
    """Folder of the sealed pages of one partition."""
    return f"{topic_pages_prefix(topic_id)}{partition}/"


def page_key(topic_id: uuid.UUID, partition: int, name: str) -> str:
    """A sealed page; ``name`` comes from ``page_name``."""
    return f"{pages_prefix(topic_id, partition)}{name}{_JSON}"


def page_name(sequence: int, unique: uuid.UUID) -> str:
    """A name that no other page has had: pages are immutable, so a name never gets a new body."""
    return f"{sequence:08d}-{id_text(unique)}"


def topic_key(topic_id: uuid.UUID) -> str:
    """The topic object."""
    return f"{TOPICS_PREFIX}{id_text(topic_id)}{_JSON}"


def topic_data_prefix(topic: str, topic_id: uuid.UUID) -> str:
    """Folder of all data objects of a topic: empty when nothing of it is left."""
    return f"data/{topic}-{id_text(topic_id)}/"


def segment_key(
    topic: str, topic_id: uuid.UUID, partition: int, start_offset: int, segment_id: uuid.UUID
) -> str:
    """Key of a segment's two objects, without their suffixes."""
    folder = f"{topic_data_prefix(topic, topic_id)}{partition}/"
    return f"{folder}{start_offset:020d}-{id_text(segment_id)}"
