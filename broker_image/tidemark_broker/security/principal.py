"""Kafka's default principals: ``User:`` and a name.

The name of a client certificate is its distinguished name as Java's ``X500Principal`` writes it
(Kafka's ``DefaultKafkaPrincipalBuilder``). That is RFC 2253: last part first, a few attribute types
by keyword, all others by OID with the value in hex. The text must be identical, since ACLs are
written for it.
"""

import functools
import ipaddress

from cryptography import x509
from cryptography.x509.oid import NameOID

from tidemark_broker.security.acls import ANONYMOUS, PRINCIPAL_PREFIX
from tidemark_broker.security.errors import AuthenticationFailed

_KEYWORDS = {
    NameOID.COMMON_NAME: "CN",
    NameOID.LOCALITY_NAME: "L",
    NameOID.STATE_OR_PROVINCE_NAME: "ST",
    NameOID.ORGANIZATION_NAME: "O",
    NameOID.ORGANIZATIONAL_UNIT_NAME: "OU",
    NameOID.COUNTRY_NAME: "C",
    NameOID.STREET_ADDRESS: "STREET",
    NameOID.DOMAIN_COMPONENT: "DC",
    NameOID.USER_ID: "UID",
}
_ESCAPED = frozenset(',=+<>#;"\\')
#: Addresses whose form is remembered: each request of a large group needs that of its client.
_HOSTS_MAX = 1024


def of_user(name: str) -> str:
    """Return the principal of a user."""
    return PRINCIPAL_PREFIX + name


def user_name(principal: str) -> str:
    """Return the user name of a principal, as quotas use it."""
    return principal.removeprefix(PRINCIPAL_PREFIX)


def host_of(peer: str) -> str:
    """Return the address of ``host:port`` in the form of ACLs: the shortest, IPv4 also from a
    dual-stack socket.
    """
    return _canonical(peer.rpartition(":")[0].strip("[]").partition("%")[0])


@functools.lru_cache(maxsize=_HOSTS_MAX)
def _canonical(host: str) -> str:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    # An ACL for 10.0.0.1 must match a client on a dual-stack socket.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def of_certificate(der: bytes | None) -> str:
    """Return the principal of a verified certificate, ANONYMOUS without one.

    Raises :class:`AuthenticationFailed` for an unreadable certificate.
    """
    if der is None:
        return ANONYMOUS
    try:
        subject = x509.load_der_x509_certificate(der).subject
        name = ",".join("+".join(map(_part, rdn)) for rdn in reversed(subject.rdns))
    except (ValueError, IndexError):
        raise AuthenticationFailed("the client certificate is not readable") from None
    return PRINCIPAL_PREFIX + name if name else ANONYMOUS


def _part(attribute: "x509.NameAttribute[str | bytes]") -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    # Java writes unknown types as OID=#hex.
    if keyword is None or isinstance(attribute.value, bytes):
        return f"{attribute.oid.dotted_string}=#{_der(attribute).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _escaped(value: str) -> str:
    made = ["\\" + char if char in _ESCAPED else char for char in value]
    # Only leading and trailing spaces are escaped (RFC 2253).
    first, end = len(value) - len(value.lstrip(" ")), len(value.rstrip(" "))
    for at in (*range(first), *range(end, len(value))):
        made[at] = "\\ "
    return "".join(made).replace("\0", "\\00")


def _der(attribute: "x509.NameAttribute[str | bytes]") -> bytes:
    """Return the DER value of an attribute, cut from a name with only that attribute."""
    data = x509.Name([attribute]).public_bytes()
    for _ in range(3):  # into the name, its only part, and that part's only attribute
        data = data[_header_bytes(data) :]
    return data[2 + data[1] :]


def _header_bytes(data: bytes) -> int:
    """Length of a DER header: the tag, and a length of one or more bytes."""
    return 2 if data[1] < 0x80 else 2 + (data[1] & 0x7F)
