"""Keys of the objects that the plug-in writes, relative to the folder in which a store is opened.

    <prefix><topic>-<topicId>/<partition>/<start>-<segmentId>.log           transformed log
    <prefix><topic>-<topicId>/<partition>/<start>-<segmentId>.indexes       its indexes
    <prefix><topic>-<topicId>/<partition>/<start>-<segmentId>.rsm-manifest  manifest, written last

The plug-in puts its prefix before a key as it is. Only its part up to the last slash is a folder.
"""

import re
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from tidemark.ids import parse_id
from tidemark.tier.stores.objects import ObjectInfo
from tidemark_pipeline.aiven.private_keys import NO_PRIVATE_KEYS, PrivateKeys

LOG, INDEXES, MANIFEST = ".log", ".indexes", ".rsm-manifest"
_SUFFIXES = frozenset({LOG, INDEXES, MANIFEST})
_ID_CHARS = 22
_SEGMENT = re.compile(r"(\d{20})-([A-Za-z0-9_-]{22})")


@dataclass(frozen=True, slots=True)
class AivenLayout:
    """Options of the layout.

    ``name_prefix``: part of the plug-in's prefix behind its last slash. ``topic_id``: of the topic
    to read if several have its name. ``keys``: private keys for encrypted segments.
    """

    name_prefix: str = ""
    topic_id: uuid.UUID | None = None
    keys: PrivateKeys = NO_PRIVATE_KEYS


class TopicFolder(NamedTuple):
    """Folder of a topic. ``folder``: its name, without a slash."""

    topic: str
    topic_id: uuid.UUID
    folder: str


def split_prefix(prefix: str) -> tuple[str, str]:
    """Return the folder of the plug-in's prefix, and the part that starts the names of topics."""
    folder, _, name = prefix.rpartition("/")
    return folder, name


def topic_of(folder: str, name_prefix: str) -> TopicFolder | None:
    """Return the topic of a folder, None if it is no folder of a topic."""
    name = folder.removeprefix(name_prefix)
    topic, dash, id_text = (
        name[: -_ID_CHARS - 1],
        name[-_ID_CHARS - 1 : -_ID_CHARS],
        name[-_ID_CHARS:],
    )
    if not folder.startswith(name_prefix) or not topic or dash != "-":
        return None
    # A bucket may also have folders of other programs.
    try:
        return TopicFolder(topic, parse_id(id_text), folder)
    except ValueError:
        return None


def complete_segments(listed: Iterable[ObjectInfo]) -> Iterator[str]:
    """Yield the keys, without suffixes, of a partition's segments that have all three objects.

    The others are uploads that did not finish, or deletions under way.
    """
    suffixes: dict[str, set[str]] = {}
    for info in listed:
        stem, dot, suffix = info.key.rpartition(".")
        is_segment = _SEGMENT.fullmatch(stem.rpartition("/")[2]) is not None
        if is_segment and dot + suffix in _SUFFIXES:
            suffixes.setdefault(stem, set()).add(dot + suffix)
    return (stem for stem, found in suffixes.items() if found == _SUFFIXES)
