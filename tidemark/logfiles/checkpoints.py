"""Small text files: offset checkpoints, ``leader-epoch-checkpoint``, ``partition.metadata``.

A checkpoint is a version line (0), a count line and that number of lines. An empty file has no
entries; any other deviation is an error (a torn file must not pass for a short one).
"""

import uuid
from collections.abc import Mapping

from tidemark.ids import id_text, parse_id
from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs

_VERSION = "0"


class CheckpointFormatError(ValueError):
    """Text that is no checkpoint of the kind that was expected."""


TopicPartition = tuple[str, int]


def write_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """``<topic> <partition> <offset>`` lines, sorted."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return _join(sorted(lines))


def read_offsets(text: str) -> dict[TopicPartition, int]:
    """The offsets by (topic, partition)."""
    offsets: dict[TopicPartition, int] = {}
    for line in _lines(text):
        fields = line.split()
        if len(fields) != 3:
            raise CheckpointFormatError(f"malformed line {line!r}")
        offsets[fields[0], _number(fields[1], line)] = _number(fields[2], line)
    return offsets


def write_epochs(epochs: LeaderEpochs) -> str:
    """``<epoch> <start offset>`` lines, oldest first."""
    return _join([f"{entry.epoch} {entry.start_offset}" for entry in epochs.entries])


def read_epochs(text: str) -> LeaderEpochs:
    """The epochs; an error unless epochs and offsets rise."""
    entries: list[EpochEntry] = []
    for line in _lines(text):
        fields = line.split()
        if len(fields) != 2:
            raise CheckpointFormatError(f"malformed line {line!r}")
        entry = EpochEntry(_number(fields[0], line), _number(fields[1], line))
        if entries and not (
            entries[-1].epoch < entry.epoch and entries[-1].start_offset < entry.start_offset
        ):
            raise CheckpointFormatError(f"epochs do not rise at line {line!r}")
        entries.append(entry)
    return LeaderEpochs(tuple(entries))


def write_partition_metadata(topic_id: uuid.UUID) -> str:
    """``partition.metadata``: the identity of the topic that the directory belongs to."""
    return f"version: 0\ntopic_id: {id_text(topic_id)}"


def read_partition_metadata(text: str) -> uuid.UUID:
    """The topic id of ``partition.metadata``."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition(":")
        fields[key.strip()] = value.strip()
    if fields.get("version") != _VERSION:
        raise CheckpointFormatError(f"partition.metadata of version {fields.get('version')!r}")
    try:
        return parse_id(fields.get("topic_id", ""))
    except ValueError as error:
        raise CheckpointFormatError(f"partition.metadata: {error}") from error


def _join(lines: list[str]) -> str:
    return "\n".join([_VERSION, str(len(lines)), *lines, ""])


def _lines(text: str) -> list[str]:
    lines = text.split("\n")
    if lines == [""]:
        return []
    if lines[0] != _VERSION:
        raise CheckpointFormatError(f"version {lines[0]!r}: only {_VERSION} is known")
    if len(lines) < 2 or not text.endswith("\n"):
        raise CheckpointFormatError("the file ends too early")
    expected, entries = _number(lines[1], lines[1]), lines[2:-1]
    if expected != len(entries):
        raise CheckpointFormatError(f"{expected} entries announced, {len(entries)} found")
    return entries


def _number(text: str, line: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise CheckpointFormatError(f"no number in line {line!r}") from error
