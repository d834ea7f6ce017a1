"""Identity in a certificate: one name, as a URI.

``tidemark:cluster/<cluster id>/broker/<node id>`` or ``tidemark:cluster/<cluster id>/controller``
is the only subject alternative name of a leaf. Host names are not used: a broker may move, and both
ends know beforehand which peer they expect.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_URI = re.compile(r"tidemark:cluster/(?P<cluster>[^/]+)/(?:broker/(?P<node>\d{1,10})|controller)")
_NODE_ID_MAX = 2**31 - 1


class WrongPeer(ConnectionError):
    """The peer is not the expected one; the text names it."""


@dataclass(frozen=True, slots=True)
class TlsIdentity:
    """A broker of a cluster, or (``node_id`` None) a controller of it."""

    cluster_id: str
    node_id: int | None = None

    @property
    def uri(self) -> str:
        """Identity as it is written in a certificate."""
        who = "controller" if self.node_id is None else f"broker/{self.node_id}"
        return f"tidemark:cluster/{self.cluster_id}/{who}"

    def __str__(self) -> str:
        who = "a controller" if self.node_id is None else f"broker {self.node_id}"
        return f"{who} of cluster {self.cluster_id}"


def parse(uri: str) -> TlsIdentity | None:
    """Return the identity that the URI names; None for any other text."""
    found = _URI.fullmatch(uri)
    if found is None:
        return None
    if found["node"] is None:
        return TlsIdentity(found["cluster"])
    node_id = int(found["node"])
    return TlsIdentity(found["cluster"], node_id) if node_id <= _NODE_ID_MAX else None


def of_certificate(certificate: Mapping[str, Any] | None) -> TlsIdentity:
    """Return the identity in a verified certificate, as ``ssl.SSLSocket.getpeercert`` returns it.

    Raises :class:`WrongPeer` unless the certificate names exactly one.
    """
    names = (certificate or {}).get("subjectAltName", ())
    found = [parse(str(value)) for kind, value in names if kind == "URI"]
    if len(names) != 1 or len(found) != 1 or found[0] is None:
        shown = ", ".join(f"{kind}:{value}" for kind, value in names)[:200]
        raise WrongPeer(f"its certificate names no broker and no controller ({shown or 'no name'})")
    return found[0]


def check(certificate: Mapping[str, Any] | None, expected: TlsIdentity) -> None:
    """Raise :class:`WrongPeer` unless the certificate is ``expected``'s."""
    actual = of_certificate(certificate)
    if actual != expected:
        raise WrongPeer(f"it is {actual}, not {expected}")
