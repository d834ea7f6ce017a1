"""Folder with one process's key, certificate and trusted certificates.

``tls.key``, ``tls.crt`` and ``ca.crt`` are the names of a Kubernetes Secret of type
``kubernetes.io/tls``, mounted unchanged. The files are examined before each connection, so that a
renewal applies at once, without a restart. If they cannot be used (a renewal is only partly
written), the files that were read last stay in use. Contexts are TLS 1.3 only, and both ends
present a certificate.
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
#: Without a password for an encrypted key OpenSSL would prompt on the terminal, and block.
_NO_PASSWORD = b""
#: Secrets are read whole; a larger file is not a Secret.
_BYTES_MAX = 1024 * 1024


class NoCertificates(OSError):
    """The folder has no usable certificate; the text names what is missing."""


@dataclass(frozen=True, slots=True)
class Contexts:
    """TLS contexts of one state of the folder.

    ``digest``: SHA-256 of the two public files, in hex.
    """

    server: ssl.SSLContext
    client: ssl.SSLContext
    digest: str


class ReloadedFolder(Generic[T]):
    """Object that ``load`` builds from files of a folder, built again when they have changed.
    Thread-safe.

    A rebuild reads a few kilobytes; otherwise the cost is one ``stat`` per file.
    """

    def __init__(self, folder: Path, names: tuple[str, ...], load: Callable[[Path], T]) -> None:
        self.folder = folder
        self._names = names
        self._load = load
        self._lock = threading.Lock()
        self._stamp: tuple[tuple[int, int, int], ...] | None = None
        self._loaded: T | None = None
        self._problem = ""

    def current(self) -> T:
        """Return the object for the folder's present files, or the last usable one.

        Loads again if a file has changed. If that fails, the former object stays in use. Raises
        :class:`NoCertificates` if there has been none.
        """
        with self._lock:
            try:
                # Time, size and inode: a renewal replaces the files, so at least one of them
                # differs.
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
        return tuple((status.st_mtime_ns, status.st_size, status.st_ino) for status in found)

    def _keep(self, error: OSError) -> None:
        """Keep the object that was loaded last. Raises NoCertificates if there is none."""
        if self._loaded is None:
            raise NoCertificates(f"{self.folder}: no usable certificate: {error}") from error
        if str(error) != self._problem:  # one line, however many connections follow
            logger.warning(
                "%s cannot be used, the former files stay in use: %s", self.folder, error
            )
        self._problem = str(error)


class TlsFiles:
    """Folder of a broker or a controller. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = ReloadedFolder(folder, (KEY, CERTIFICATE, TRUSTED), load)

    def contexts(self) -> Contexts:
        """Return the present contexts; see :meth:`ReloadedFolder.current`."""
        return self._files.current()


class ListenerFiles:
    """Folder of a listener for clients. Thread-safe.

    ``ca.crt`` signs client certificates; it is needed only where clients present one. TLS 1.2 is
    accepted too, because some clients have no newer one.
    """

    def __init__(self, folder: Path, client_certificates: ssl.VerifyMode) -> None:
        self._verify = client_certificates
        asks = client_certificates is not ssl.CERT_NONE
        names = (KEY, CERTIFICATE, TRUSTED) if asks else (KEY, CERTIFICATE)
        self._files = ReloadedFolder(folder, names, self._make)

    def context(self) -> ssl.SSLContext:
        """Return the context for the next connection; see :meth:`ReloadedFolder.current`."""
        return self._files.current()

    def _make(self, folder: Path) -> ssl.SSLContext:
        # Clients verify host names themselves, as Kafka's do.
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
    # The private key is left out: the digest is reported to the operator.
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
    """Disable session tickets, so that every connection presents its certificate."""
    context.num_tickets = 0
    context.options |= ssl.OP_NO_TICKET
