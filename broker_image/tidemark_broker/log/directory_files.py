"""Small files of a log directory and of a partition's directory.

The log directory has the lock, ``tidemark.properties`` and the clean shutdown marker. The directory
id is generated when the directory is first used. A broker that returns with another id has lost its
disk. The marker contains the broker epoch of the run that ended cleanly. It is removed as soon as
it is read, so that it never vouches for a later run.

A partition's directory has ``partition.metadata`` with the topic id, and ``partition.state``: the
controller's last state of the replica, as JSON.
"""

import fcntl
import json
import logging
import os
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tidemark.logfiles import names
from tidemark.logfiles.checkpoints import CheckpointFormatError, read_partition_metadata
from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import replace_file, sync_directory

logger = logging.getLogger(__name__)

PROPERTIES = "tidemark.properties"
LOCK = ".lock"
_VERSION = "1"
UNKNOWN_BROKER_EPOCH = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectoryIdentity:
    """Content of the file ``tidemark.properties``."""

    directory_id: uuid.UUID
    cluster_id: str
    node_id: int


def lock_directory(directory: Path) -> int:
    """Lock the directory for this process; return the file descriptor that holds the lock.

    Raises StorageError if another broker uses the directory.
    """
    path = directory / LOCK
    with storage_errors(f"{directory} cannot be locked"):
        directory.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        # The kernel releases it when the process ends, so no stale lock remains.
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise StorageError(
            f"{directory} is in use by another broker: stop that one, or give this one a log.dir "
            "of its own"
        ) from error
    return descriptor


def ensure_identity(directory: Path, *, cluster_id: str, node_id: int) -> DirectoryIdentity:
    """Return the identity stored in a log directory; generate one for a new directory. Blocks.

    Raises :class:`StorageError` if the directory belongs to another broker or cluster.
    """
    path = directory / PROPERTIES
    with storage_errors(f"{path} cannot be read"):
        text = path.read_text() if path.exists() else None
    # The first broker that uses the directory owns it.
    if text is None:
        identity = DirectoryIdentity(
            directory_id=uuid.uuid4(), cluster_id=cluster_id, node_id=node_id
        )
        replace_file(path, _write_properties(identity).encode())
        logger.info("%s is new: directory id %s", directory, identity.directory_id)
        return identity
    identity = _read_properties(path, text)
    # A volume attached to the wrong broker must not be served or overwritten.
    for key, stored, expected in (
        ("cluster.id", identity.cluster_id, cluster_id),
        ("node.id", str(identity.node_id), str(node_id)),
    ):
        if stored != expected:
            raise StorageError(
                f"{directory} belongs to {key}={stored}, this broker has {key}={expected}: "
                "correct its configuration, or give it a log.dir of its own"
            )
    return identity


def _write_properties(identity: DirectoryIdentity) -> str:
    return (
        f"version={_VERSION}\n"
        f"directory.id={identity.directory_id}\n"
        f"cluster.id={identity.cluster_id}\n"
        f"node.id={identity.node_id}\n"
    )


def _read_properties(path: Path, text: str) -> DirectoryIdentity:
    """Parse the content of ``tidemark.properties``. Raises StorageError if it is not valid."""
    values: dict[str, str] = {}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        values[key.strip()] = value.strip()
    try:
        if values["version"] != _VERSION:
            raise ValueError(f"version {values['version']}")  # noqa: TRY301 - one way out below
        return DirectoryIdentity(
            directory_id=uuid.UUID(values["directory.id"]),
            cluster_id=values["cluster.id"],
            node_id=int(values["node.id"]),
        )
    except (KeyError, ValueError) as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def take_clean_shutdown(directory: Path) -> int | None:
    """Remove the clean shutdown marker and return its broker epoch (KIP-966). Blocks.

    None means that the last run did not end cleanly, -1 that it was never registered. The marker is
    removed durably before anything else happens to the directory.
    """
    path = directory / names.CLEAN_SHUTDOWN_MARKER
    with storage_errors(f"{path} cannot be read"):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
        # From here a crash counts as an unclean shutdown.
        path.unlink()
        sync_directory(directory)
    try:
        epoch = json.loads(data)["brokerEpoch"]
        return int(epoch)
    except (ValueError, KeyError, TypeError) as error:
        logger.warning("%s cannot be read (%r): treated as an unclean shutdown", path, error)
        return None


def mark_clean_shutdown(directory: Path, broker_epoch: int) -> None:
    """Record that everything was flushed and checkpointed; the last write of a run."""
    data = json.dumps({"version": 0, "brokerEpoch": broker_epoch}).encode()
    replace_file(directory / names.CLEAN_SHUTDOWN_MARKER, data)


def read_topic_id(directory: Path) -> uuid.UUID:
    """Return the topic id. Blocks. Raises :class:`StorageError` if it cannot be read."""
    path = directory / names.PARTITION_METADATA
    with storage_errors(f"{path} cannot be read"):
        text = path.read_text()
    try:
        return read_partition_metadata(text)
    except CheckpointFormatError as error:
        raise StorageError(f"{path} cannot be read: {error}") from error


def check_topic_id(directory: Path, topic_id: uuid.UUID) -> None:
    """Raise :class:`StorageError` if the directory is another topic's. Blocks."""
    stored = read_topic_id(directory)
    if stored != topic_id:
        raise StorageError(f"{directory} belongs to topic id {stored}, not to {topic_id}")


PARTITION_STATE = "partition.state"
_STATE_BYTES_MAX = 1024 * 1024


def read_state(directory: Path) -> dict[str, Any] | None:
    """Return the replica state stored in a log directory, None if none was ever written. Blocks.

    Raises StorageError if it is damaged.
    """
    path = directory / PARTITION_STATE
    with storage_errors(f"{path} cannot be read"):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        state = json.loads(data)
    # Unlike a missing file this is damage, which the caller must see.
    except ValueError as error:
        raise StorageError(f"{path} is not valid JSON: {error}") from error
    if not isinstance(state, dict):
        raise StorageError(f"{path} is not a JSON object")
    return state


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Replace the stored state durably (blocking)."""
    replace_file(directory / PARTITION_STATE, encode_state(state))


def encode_state(state: dict[str, Any]) -> bytes:
    """Return the state as bytes of the file. Raises :class:`StorageError` above 1 MiB."""
    data = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    if len(data) > _STATE_BYTES_MAX:
        raise StorageError(f"a partition state of {len(data)} bytes is above {_STATE_BYTES_MAX}")
    return data
