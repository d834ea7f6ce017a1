"""``partition.state``: what the controller last said about a replica, kept beside its log as JSON."""

import json
from pathlib import Path
from typing import Any

from tidemark_broker.log.errors import StorageError, storage_errors
from tidemark_broker.log.files import write_whole

PARTITION_STATE = "partition.state"
_STATE_BYTES_MAX = 1024 * 1024


def read_state(directory: Path) -> dict[str, Any] | None:
    """The stored state, None if none was ever written (blocking; small)."""
    path = directory / PARTITION_STATE
    with storage_errors(f"{path} cannot be read"):
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            return None
    try:
        state = json.loads(data)
    except ValueError as error:
        raise StorageError(f"{path} holds no JSON: {error}") from error
    if not isinstance(state, dict):
        raise StorageError(f"{path} holds no JSON object")
    return state


def write_state(directory: Path, state: dict[str, Any]) -> None:
    """Replace the stored state, durably (blocking)."""
    write_whole(directory / PARTITION_STATE, encode_state(state))


def encode_state(state: dict[str, Any]) -> bytes:
    """The file's bytes."""
    data = json.dumps(state, separators=(",", ":"), sort_keys=True).encode()
    if len(data) > _STATE_BYTES_MAX:
        raise StorageError(f"a partition state of {len(data)} bytes is above {_STATE_BYTES_MAX}")
    return data
