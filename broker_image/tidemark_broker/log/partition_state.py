"""File ``partition.state``: the controller's last state of a replica, stored beside its log as
JSON.
"""

import json
from pathlib import Path
from typing import Any

from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import replace_file

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
