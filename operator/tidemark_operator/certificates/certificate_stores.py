"""Stores of keys and certificates: Secrets, or a folder of a local cluster.

A keeper holds named bundles of small files and replaces them as a whole, under the version that was
read. Two operators that create an authority at the same moment therefore end with one. No content
is ever logged.

A folder is replaced as a whole, like a kubelet's mount of a Secret. Keys and certificates belong
together: a reader that gets some new and some old files, or reads after a crash between two of
them, has nothing that works. Each version therefore has a folder of its own, and ``..data`` is a
link to the present one that a rename replaces. Each name is a link into ``..data``. Folders have
mode 0700, files 0600.
"""

import asyncio
import base64
import contextlib
import datetime as dt
import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Conflict, NotFound
from tidemark_operator.kube.kinds import SECRET, Json
from tidemark_operator.pods.identity import owner_reference
from tidemark_operator.resources.names import GROUP, MANAGED_BY_LABEL, OPERATOR

MANAGED_BY = {MANAGED_BY_LABEL: OPERATOR}


@dataclass(frozen=True, slots=True)
class SecretForm:
    """Label and type that identify the operator's Secrets of one use.

    ``uid_annotation``: annotation with the owner's uid, for Secrets that Kubernetes' garbage
    collector must not delete. "": Secrets have an owner reference and are deleted with their owner.
    """

    label: str
    type: str
    uid_annotation: str = ""

    @property
    def labels(self) -> dict[str, str]:
        """Labels of such a Secret."""
        return {**MANAGED_BY, self.label: "true"}


CERTIFICATES = SecretForm(f"{GROUP}/certificates", "kubernetes.io/tls")


class BundleNameTaken(Exception):
    """Another owner has the bundle's name."""


class BundleConflict(BundleNameTaken):
    """Another writer has changed the bundle at the same moment: read it again."""


@dataclass(frozen=True, slots=True)
class StoredBundle:
    """A bundle as it was read; ``repr`` shows no content.

    ``owner``: uid of the object that it was made for. ``uid``, ``metadata``, ``type``: the Secret's
    own. ``is_collected``: it has owner references.
    """

    data: Mapping[str, bytes] = field(repr=False)
    version: str
    owner: str = ""
    uid: str = ""
    metadata: Mapping[str, Any] = field(default_factory=dict, repr=False)
    type: str = ""

    @property
    def is_collected(self) -> bool:
        """Return whether Kubernetes deletes the Secret with its owner."""
        return bool(self.metadata.get("ownerReferences"))


class BundleStore(Protocol):
    """Store of bundles. Methods raise ``KubeError`` or ``OSError``."""

    @property
    def arrives_within(self) -> dt.timedelta:
        """Time after which every reader has what was written."""

    def where(self, name: str) -> str:
        """Return a bundle's place for messages."""

    async def read(self, name: str) -> StoredBundle | None:
        """Return a bundle, None if there is none. Raises :class:`BundleNameTaken`."""

    async def write(
        self,
        name: str,
        data: Mapping[str, bytes],
        former: StoredBundle | None,
        owner: Json | None = None,
    ) -> None:
        """Create or replace a bundle; ``owner``: the object that it is deleted with.

        Raises :class:`BundleConflict`.
        """


class SecretStore:
    """Secrets of one form in one namespace.

    A Secret without our labels belongs to another owner and is not changed. A kubelet updates the
    mount of a Secret within about two minutes.
    """

    arrives_within = dt.timedelta(minutes=5)

    def __init__(self, api: KubeApi, namespace: str, form: SecretForm = CERTIFICATES) -> None:
        self._api = api
        self._namespace = namespace
        self._form = form

    def where(self, name: str) -> str:
        return f"Secret {name}"

    async def read(self, name: str) -> StoredBundle | None:
        """Return a Secret of the operator by name, None if it does not exist.

        Raises :class:`BundleNameTaken` if a Secret of this name lacks the operator's labels.
        """
        try:
            body = await self._api.get(SECRET, self._namespace, name)
        except NotFound:
            return None
        meta = body["metadata"]
        # The name alone proves nothing: a user may have a Secret of this name.
        if not self._form.labels.items() <= (meta.get("labels") or {}).items():
            raise BundleNameTaken(
                f"Secret {name} does not belong to the operator, because it "
                "lacks the labels "
                f"{', '.join(f'{key}={value}' for key, value in self._form.labels.items())}. "
                "Rename it. If it is a restored Secret of the operator, add "
                "the labels"
            )
        # The uid of the owning object decides later whether the Secret is of the present object.
        data = {key: base64.b64decode(text) for key, text in (body.get("data") or {}).items()}
        owners = [ref for ref in meta.get("ownerReferences") or () if ref.get("controller")]
        # Secrets that must survive their owner have its uid in an annotation instead.
        noted = (meta.get("annotations") or {}).get(self._form.uid_annotation, "")
        owner = str(noted or (owners[0]["uid"] if owners else ""))
        return StoredBundle(
            data,
            str(meta["resourceVersion"]),
            owner,
            str(meta["uid"]),
            metadata=meta,
            type=str(body.get("type") or ""),
        )

    async def remove(self, name: str, kept: StoredBundle) -> None:
        """Delete exactly the Secret that was read. Raises :class:`BundleConflict`."""
        try:
            await self._api.delete(SECRET, self._namespace, name, uid=kept.uid)
        except NotFound:
            return
        except Conflict as error:
            raise BundleConflict(str(error)) from error

    async def write(
        self,
        name: str,
        data: Mapping[str, bytes],
        former: StoredBundle | None,
        owner: Json | None = None,
    ) -> None:
        """Create the Secret, or replace ``former``, which was read before.

        ``owner`` is the object to which the Secret belongs; garbage collection deletes it with the
        owner unless its form records the owner in an annotation. Raises :class:`BundleConflict` if
        another writer was faster.
        """
        # Keep the labels and annotations of other tools: a backup tool identifies its objects by
        # them. Keep the type, too: it is immutable, and a restored Secret may have another one.
        known = {} if former is None else former.metadata
        meta: Json = {
            "name": name,
            "namespace": self._namespace,
            "labels": {**(known.get("labels") or {}), **self._form.labels},
        }
        annotations = dict(known.get("annotations") or {})
        if owner is not None and self._form.uid_annotation:
            annotations[self._form.uid_annotation] = str(owner["metadata"]["uid"])
        elif owner is not None:
            named = owner["metadata"]
            meta["ownerReferences"] = [owner_reference(owner["kind"], named["name"], named["uid"])]
        if annotations:
            meta["annotations"] = annotations
        body: Json = {
            "apiVersion": "v1",
            "kind": "Secret",
            "type": (former.type if former is not None else "") or self._form.type,
            "metadata": meta,
            "data": {key: base64.b64encode(value).decode() for key, value in data.items()},
        }
        # The version that was read makes a concurrent writer conflict.
        try:
            if former is None:
                await self._api.create(SECRET, self._namespace, body)
            else:
                meta["resourceVersion"] = former.version
                await self._api.replace(SECRET, body)
        except Conflict as error:
            raise BundleConflict(str(error)) from error


class FolderStore:
    """A folder for each bundle (:mod:`tidemark_operator.certificates.certificate_stores`).

    Brokers see changes at once; an operator on standby looks every few seconds.
    """

    arrives_within = dt.timedelta(seconds=10)

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def where(self, name: str) -> str:
        return f"folder {self._folder / name}"

    async def read(self, name: str) -> StoredBundle | None:
        return await asyncio.to_thread(self._read, name)

    async def write(
        self,
        name: str,
        data: Mapping[str, bytes],
        former: StoredBundle | None,
        owner: Json | None = None,
    ) -> None:
        """See :class:`BundleStore`; a folder has no owner."""
        await asyncio.to_thread(self._write, name, data, former)

    def _read(self, name: str) -> StoredBundle | None:
        data = read_files(self._folder / name)
        return StoredBundle(data, _digest(data)) if data else None

    def _write(self, name: str, data: Mapping[str, bytes], former: StoredBundle | None) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        # The lock makes check and write one step among processes.
        lock_file = os.open(self._folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        with os.fdopen(lock_file, "r+") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            found = self._read(name)
            if (found and found.version) != (former and former.version):
                raise BundleConflict(f"{self._folder / name} was written by another process")
            write_files(self._folder / name, data)


def _digest(data: Mapping[str, bytes]) -> str:
    found = hashlib.sha256()
    for name, content in sorted(data.items()):
        found.update(f"{name} {len(content)} ".encode() + content)
    return found.hexdigest()


# ------------------------------------------------------------ folders


_PRESENT = "..data"


def write_files(folder: Path, data: Mapping[str, bytes]) -> None:
    """Replace all files of a folder in one atomic step.

    Readers never see a mixture of an old certificate and a new key. The files are symbolic links
    through one link to a versioned directory, like a mounted Kubernetes Secret; renaming that link
    replaces all of them. Blocks while another thread or process writes the folder. Raises
    ``OSError``; then the former files stay.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    folder.chmod(0o700)
    with _locked(folder):
        # The new version is complete and on disk before any link leads to it.
        version = Path(tempfile.mkdtemp(prefix="..version-", dir=folder))
        for name, content in data.items():
            _write(version / name, content)
        _sync(version)
        # The switch: one rename replaces all files.
        _link(folder / _PRESENT, version.name)
        for name in data:
            _link(folder / name, f"{_PRESENT}/{name}")
        _sync(folder)
        # Former versions last, so that a crash leaves at least one complete version.
        _sweep(folder, {*data, _PRESENT, version.name})


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Two writers at once would each delete the other's version as a former one, and leave dead links.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def read_files(folder: Path) -> dict[str, bytes]:
    """Return all files of one version, empty without one. Raises ``OSError``: read again."""
    present = folder / _PRESENT
    if not present.exists():
        return {}
    # `resolve` once, so that all files come from the same version.
    return {path.name: path.read_bytes() for path in sorted(present.resolve().iterdir())}


def _write(path: Path, content: bytes) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _link(path: Path, target: str) -> None:
    """Create or replace a link in one step."""
    if path.is_symlink() and str(path.readlink()) == target:
        return
    # A rename replaces atomically; symlink_to alone fails if the name exists.
    new = path.with_name(f"..{path.name}.new")
    new.unlink(missing_ok=True)
    new.symlink_to(target)
    new.rename(path)


def _sweep(folder: Path, kept: set[str]) -> None:
    """Delete former versions and remains of a crash."""
    for path in folder.iterdir():
        if path.name in kept:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
