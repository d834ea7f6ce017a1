"""A folder with what one process needs to prove who it is: ``tls.key``, ``tls.crt``, ``ca.crt``.

The names are those of a Kubernetes Secret of type ``kubernetes.io/tls``, mounted as it is. All
three are looked at again before each connection, so that what was renewed counts at once, without
a restart; what cannot be used (a renewal of which only a part has arrived) leaves what was read
last in force. Contexts are TLS 1.3 only, and both ends show a certificate.
"""

import hashlib
import logging
import ssl
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

logger = logging.getLogger(__name__)
T = TypeVar("T")

KEY, CERTIFICATE, TRUSTED = "tls.key", "tls.crt", "ca.crt"
#: Of an encrypted key: without one OpenSSL would ask the terminal, and wait.
_NO_PASSWORD = b""
#: Secrets are read whole; one that is larger is none of ours.
_BYTES_MAX = 1024 * 1024


class NoCertificates(OSError):
    """There is nothing in the folder that can be used; the text says what is missing."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """Of one state of the folder. ``digest`` names it: SHA-256 of the two public files, in hex."""

    server: ssl.SSLContext
    client: ssl.SSLContext
    digest: str


class ReloadedFolder(Generic[T]):
    """What ``load`` makes of some files of a folder, made again when they have changed. Any thread.
    Reads a few kilobytes then, else it is a ``stat`` of each."""

    def __init__(self, folder: Path, names: tuple[str, ...], load: Callable[[Path], T]) -> None:
        self.folder = folder
        self._names = names
        self._load = load
        self._lock = threading.Lock()
        self._stamp: tuple[tuple[int, int, int], ...] | None = None
        self._loaded: T | None = None
        self._problem = ""

    def current(self) -> T:
        """As the folder is now, or was when it could last be used; raises
        :class:`NoCertificates`."""
        with self._lock:
            try:
                stamp = self._look()
                if stamp != self._stamp:
                    self._loaded = self._load(self.folder)
                    self._stamp, self._problem = stamp, ""
            except (OSError, ssl.SSLError) as error:
                self._keep(error)
            assert self._loaded is not None
            return self._loaded

    def _look(self) -> tuple[tuple[int, int, int], ...]:
        found = ((self.folder / name).stat() for name in self._names)
        return tuple((each.st_mtime_ns, each.st_size, each.st_ino) for each in found)

    def _keep(self, error: OSError) -> None:
        """What was read before stays in force."""
        if self._loaded is None:
            raise NoCertificates(f"{self.folder}: no usable certificate: {error}") from error
        if str(error) != self._problem:  # one line, however many connections come meanwhile
            logger.warning("%s cannot be used, what was there goes on: %s", self.folder, error)
        self._problem = str(error)


class TlsFiles:
    """The folder of a broker or a controller. Any thread."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = ReloadedFolder(folder, (KEY, CERTIFICATE, TRUSTED), load)

    def contexts(self) -> Contexts:
        """See :meth:`ReloadedFolder.current`."""
        return self._files.current()


class ListenerFiles:
    """The folder of a listener for clients: ``ca.crt`` signs their certificates, and is needed only
    where they show one. TLS 1.2 is spoken, too: some clients know no newer one. Any thread."""

    def __init__(self, folder: Path, client_certificates: ssl.VerifyMode) -> None:
        self._verify = client_certificates
        asks = client_certificates is not ssl.CERT_NONE
        names = (KEY, CERTIFICATE, TRUSTED) if asks else (KEY, CERTIFICATE)
        self._files = ReloadedFolder(folder, names, self._make)

    def context(self) -> ssl.SSLContext:
        """For the next connection; see :meth:`ReloadedFolder.current`."""
        return self._files.current()

    def _make(self, folder: Path) -> ssl.SSLContext:
        context = ssl.SSLContext(_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.verify_mode = self._verify
        context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password=_NO_PASSWORD)
        if self._verify is not ssl.CERT_NONE:
            context.load_verify_locations(folder / TRUSTED)
        _without_tickets(context)
        return context


def load(folder: Path) -> Contexts:
    """Read the three files. Raises ``OSError`` (``ssl.SSLError`` is one)."""
    server, client = (_context(folder, side) for side in (_SERVER, _CLIENT))
    digest = hashlib.sha256()
    for name in (CERTIFICATE, TRUSTED):
        with (folder / name).open("rb") as file:
            digest.update(file.read(_BYTES_MAX))
    return Contexts(server, client, digest.hexdigest())


_SERVER, _CLIENT = ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT


def _context(folder: Path, side: int) -> ssl.SSLContext:
    context = ssl.SSLContext(side)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False  # identities are URIs: see identity.py
    context.verify_mode = ssl.CERT_REQUIRED
    context.load_cert_chain(folder / CERTIFICATE, folder / KEY, password=_NO_PASSWORD)
    context.load_verify_locations(folder / TRUSTED)
    if side == _SERVER:
        _without_tickets(context)
    return context


def _without_tickets(context: ssl.SSLContext) -> None:
    """Every connection shows its certificate anew."""
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
