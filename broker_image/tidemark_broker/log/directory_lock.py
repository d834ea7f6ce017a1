"""Ownership of a log directory: the lock, ``tidemark.properties``, and the clean shutdown marker.

The directory id is generated when the directory is first used. A broker that returns with another
id has lost its disk. The marker contains the broker epoch of the run that ended cleanly. It is
removed as soon as it is read, so that it never vouches for a later run.
"""

import fcntl
import json
import logging
import os
import uuid
from dataclasses import dataclass
from pathlib import Path

from tidemark.logfiles import names
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
