"""Deletion of a partition's directory: renamed, which deletes it durably, then removed.

A crash in between leaves a directory whose name marks it as deleted; the next start removes it.
"""

import shutil
import uuid
from collections.abc import Callable
from pathlib import Path

from tidemark.logfiles import names
from tidemark_broker.log.errors import storage_errors
from tidemark_broker.log.files import sync_directory
from tidemark_broker.log.partition_log import PartitionLog


def rename_out_of_the_way(directory: Path, topic: str, partition: int) -> Path:
    """Rename a directory as deleted; return the new name, which is not synced yet. Blocks."""
    target = directory.with_name(names.deleted_directory_name(topic, partition, uuid.uuid4()))
    with storage_errors(f"{directory} cannot be removed"):
        directory.rename(target)
    return target


def rename_aside(directory: Path, topic: str, partition: int) -> Path:
    """Rename a directory that another one replaces; return the new name, not yet synced. Blocks."""
    target = directory.with_name(names.stray_directory_name(topic, partition, uuid.uuid4()))
    with storage_errors(f"{directory} cannot be set aside"):
        directory.rename(target)
    return target


def rename_log(log: PartitionLog, sync_parent: Callable[[], None] | None) -> Path:
    """Close a log and rename its directory as deleted; return the new path. Blocks.

    The new name is durable on return. After a failure the call may be repeated.
    """
    log.close_files()
    log.directory = rename_out_of_the_way(log.directory, log.topic, log.partition)
    sync_parent_of(log.directory, sync_parent)
    return log.directory


def remove_renamed(directory: Path) -> None:
    """Remove a directory that was renamed. Blocks."""
    with storage_errors(f"{directory} cannot be removed"):
        shutil.rmtree(directory)


def sync_parent_of(directory: Path, sync_parent: Callable[[], None] | None) -> None:
    """Make a new name durable; ``sync_parent`` does it for several at once. Blocks."""
    if sync_parent is not None:
        sync_parent()
        return
    with storage_errors(f"{directory.parent} cannot be synced"):
        sync_directory(directory.parent)
