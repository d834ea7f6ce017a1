"""Small text files: offset checkpoints, ``leader-epoch-checkpoint``, ``partition.metadata``.

A checkpoint has a line with its version (0), a line with a count, and that number of lines. An
empty file has no entries. Any other deviation is an error, so that a torn file is not read as a
short one.
"""

import uuid
from collections.abc import Mapping

from tidemark.ids import id_text, parse_id
from tidemark.logfiles.leader_epochs import EpochEntry, LeaderEpochs

_VERSION = "0"


class CheckpointFormatError(ValueError):
    """The text is not a checkpoint of the expected kind."""


TopicPartition = tuple[str, int]


def write_offsets(offsets: Mapping[TopicPartition, int]) -> str:
    """Return the text of an offset checkpoint: sorted lines ``<topic> <partition> <offset>``."""
    lines = [f"{topic} {partition} {offset}" for (topic, partition), offset in offsets.items()]
    return _join(sorted(lines))


def read_offsets(text: str) -> dict[TopicPartition, int]:
    """Parse an offset checkpoint. Raises :class:`CheckpointFormatError`."""
    offsets: dict[TopicPartition, int] = {}
    for line in _lines(text):
        fields = line.split()
        if len(fields) != 3:
            raise CheckpointFormatError(f"malformed line {line!r}")
        offsets[fields[0], _number(fields[1], line)] = _number(fields[2], line)
    return offsets


def write_epochs(epochs: LeaderEpochs) -> str:
    """Return the text of an epoch checkpoint: lines ``<epoch> <start offset>``, oldest first."""
    return _join([f"{entry.epoch} {entry.start_offset}" for entry in epochs.entries])


def read_epochs(text: str) -> LeaderEpochs:
    """Parse a ``leader-epoch-checkpoint`` file: a line with epoch and start offset for each epoch.

    Raises :class:`CheckpointFormatError`.
    """
    entries: list[EpochEntry] = []
    for line in _lines(text):
        fields = line.split()
        if len(fields) != 2:
            raise CheckpointFormatError(f"malformed line {line!r}")
        entry = EpochEntry(_number(fields[0], line), _number(fields[1], line))
        # Both rise strictly. Lookups rely on it, so a file that contradicts it is rejected.
        if entries and not (
            entries[-1].epoch < entry.epoch and entries[-1].start_offset < entry.start_offset
        ):
            raise CheckpointFormatError(f"epochs do not rise at line {line!r}")
        entries.append(entry)
    return LeaderEpochs(tuple(entries))


def write_partition_metadata(topic_id: uuid.UUID) -> str:
    """Return the text of ``partition.metadata``, which names the directory's topic."""
    return f"version: 0\ntopic_id: {id_text(topic_id)}"


def read_partition_metadata(text: str) -> uuid.UUID:
    """Return the topic id in ``partition.metadata``. Raises :class:`CheckpointFormatError`."""
    # Properties in any order, as Kafka's reader accepts them.
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
    """Return the entries of a checkpoint, after checking version, count and the final newline."""
    lines = text.split("\n")
    if lines == [""]:
        return []
    if lines[0] != _VERSION:
        raise CheckpointFormatError(f"version {lines[0]!r}: only {_VERSION} is known")
    # A torn write can end in the middle of a number, which would still parse.
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
