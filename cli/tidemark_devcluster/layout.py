"""Paths of a local cluster: one folder, so that a second ``up`` finds its data.

<dir>/control-plane/   etcd, certificates, kubeconfig <dir>/operator.json    settings of the
operator <dir>/brokers/N.json   settings of broker N;  <dir>/brokers/N/  its log directory
<dir>/tier/            the remote tier (``--tier directory``), <dir>/minio/ (``--tier s3``)
<dir>/certificates/    the cluster's own authority and issued certificates; private
<dir>/exports/NAME/    the job of an Export: its log, its last report; private <dir>/run/NAME.json
a process that was started;  <dir>/logs/NAME.log  its log
"""

import json
import os
import re
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

_JSON_BYTES_MAX = 1024 * 1024
#: Folders that a cluster creates below its root.
_PARTS = (
    *("control-plane", "brokers", "tier", "minio", "certificates", "exports"),
    *("kafka", "run", "logs"),
)


class LayoutError(ValueError):
    """File or folder that is not as ``tidemark`` left it; the text says what to do."""


class Layout:
    """Paths of one local cluster under ``root``; nothing is created."""

    def __init__(self, root: Path) -> None:
        """Make the folder's path absolute."""
        self.root = root.expanduser().resolve()
        self.settings = self.root / "cluster.json"
        self.control_plane = self.root / "control-plane"
        self.tier = self.root / "tier"
        self.minio = self.root / "minio"
        self.run = self.root / "run"
        self.certificates = self.root / "certificates"
        self.exports = self.root / "exports"

    def broker_certificates(self, node_id: int) -> Path:
        """Return the folder with a broker's certificate, see ``certificates.leaf_name``."""
        return self.certificates / f"broker-{node_id}-tls"

    def log(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.log"

    def ready(self, name: str) -> Path:
        return self.root / "logs" / f"{name}.ready"

    def broker_config(self, node_id: int) -> Path:
        return self.root / "brokers" / f"{node_id}.json"

    def broker_data(self, node_id: int) -> Path:
        return self.root / "brokers" / str(node_id)

    def broker_ids(self) -> list[int]:
        """Return the ids of all brokers that were ever added to the folder, ascending."""
        folder = self.root / "brokers"
        names = [p.name for p in folder.glob("*.json")] if folder.exists() else []
        return sorted(int(m[1]) for m in (re.fullmatch(r"(\d+)\.json", n) for n in names) if m)

    def remove(self) -> bool:
        """Remove everything that a cluster creates; return False if other files keep the folder.

        The folder may be one of the user's with files of other programs, so it is removed only if
        nothing else is in it.
        """
        for name in _PARTS:
            shutil.rmtree(self.root / name, ignore_errors=True)
        self.settings.unlink(missing_ok=True)
        try:
            self.root.rmdir()
        except OSError:
            return False
        return True

    def create(self) -> None:
        """Create the folders, private to the user, as they contain keys and tokens.

        Raises :class:`LayoutError` if one belongs to another user.
        """
        self.root.mkdir(parents=True, exist_ok=True, mode=0o700)
        _make_private(self.root)
        for name in ("run", "logs", "brokers"):
            (self.root / name).mkdir(exist_ok=True, mode=0o700)
            _make_private(self.root / name)


def nearest(folder: Path) -> Path:
    """Return the folder of the cluster that a relative name means, as git finds a repository.

    That is the folder itself if it exists, else the one of the same name in the closest parent of
    the working directory that contains a cluster.
    """
    if folder.is_absolute() or folder.exists():
        return folder
    for parent in Path.cwd().parents:
        if Layout(parent / folder).settings.exists():
            return parent / folder
    return folder


def _make_private(folder: Path) -> None:
    """Restrict a folder to its owner.

    Another user who could write to it could name processes to kill and programs to start.
    """
    # lstat: a symbolic link could point into a folder of another user.
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        raise LayoutError(f"{folder} is not a folder of yours: choose another one with --dir")
    if status.st_mode & 0o077:
        folder.chmod(0o700)


def private_dir(path: Path) -> Path:
    """Create a folder that only its owner can enter, and return its absolute path."""
    path.mkdir(parents=True, exist_ok=True, mode=0o700)
    path.chmod(0o700)
    return path.resolve()


def write_private(path: Path, text: str) -> None:
    """Replace a file atomically, readable only by its owner."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        file.write(text)
    Path(temporary).replace(path)


def write_json(path: Path, value: Any) -> None:
    """Replace a file by ``value`` as JSON, readable only by its owner."""
    write_private(path, json.dumps(value, indent=2, sort_keys=True))


def read_json(path: Path) -> dict[str, Any] | None:
    """Return the object in a JSON file, or None if there is no file.

    Raises :class:`LayoutError` for any other content, and for a file that other users may write.
    """
    try:
        # O_NOFOLLOW and O_NONBLOCK: neither a link nor a pipe planted here may redirect or block
        # us.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise LayoutError(f"{path} cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as stream:
        # Checked on the open descriptor, so that the file cannot be swapped in between.
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise LayoutError(f"{path} is not a regular file: remove it")
        if status.st_uid != os.geteuid() or status.st_mode & 0o022:
            raise LayoutError(
                f"other users may write {path}: remove it, or make it writable only by you"
            )
        try:
            value = json.loads(stream.read(_JSON_BYTES_MAX))
        except (ValueError, RecursionError) as error:
            raise LayoutError(f"{path} is not JSON ({error}): remove it") from error
    if not isinstance(value, dict):
        raise LayoutError(f"{path} does not contain a JSON object: remove it")
    return value
