"""Kafka's default principals: ``User:`` and a name.

Of a client certificate the name is what it is issued to, its distinguished name as Java's
``X500Principal`` writes it (Kafka's ``DefaultKafkaPrincipalBuilder``), which is RFC 2253: the last
part first, a few types of parts by their keywords, all others by number with their value in hex. It
has to be the very same text, as ACLs are written for it.
"""

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


def of_user(name: str) -> str:
    """The principal of a user's name."""
    return PRINCIPAL_PREFIX + name


def user_name(principal: str) -> str:
    """The user's name of a principal, as quotas name it."""
    return principal.removeprefix(PRINCIPAL_PREFIX)


def host_of(peer: str) -> str:
    """The address of ``host:port`` as ACLs name it: in its shortest form, an IPv4 address also
    where it came to a socket for both."""
    host = peer.rpartition(":")[0].strip("[]").partition("%")[0]
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return str(mapped or address)


def of_certificate(der: bytes | None) -> str:
    """The principal of a certificate that was verified; without one it is anybody. Raises
    :class:`AuthenticationFailed` for one that cannot be read."""
    if der is None:
        return ANONYMOUS
    try:
        subject = x509.load_der_x509_certificate(der).subject
        name = ",".join("+".join(map(_part, rdn)) for rdn in reversed(subject.rdns))
    except (ValueError, IndexError):
        raise AuthenticationFailed("its certificate cannot be read") from None
    return PRINCIPAL_PREFIX + name if name else ANONYMOUS


def _part(attribute: "x509.NameAttribute[str | bytes]") -> str:
    keyword = _KEYWORDS.get(attribute.oid)
    if keyword is None or isinstance(attribute.value, bytes):
        return f"{attribute.oid.dotted_string}=#{_der(attribute).hex()}"
    return f"{keyword}={_escaped(attribute.value)}"


def _escaped(value: str) -> str:
    made = ["\\" + char if char in _ESCAPED else char for char in value]
    first, end = len(value) - len(value.lstrip(" ")), len(value.rstrip(" "))
    for at in (*range(first), *range(end, len(value))):
        made[at] = "\\ "
    return "".join(made).replace("\0", "\\00")


def _der(attribute: "x509.NameAttribute[str | bytes]") -> bytes:
    """Its value as it is encoded: what is behind its type, in a name that has nothing else."""
    data = x509.Name([attribute]).public_bytes()
    for _ in range(3):  # into the name, its only part, and that one's only attribute
        data = data[_header_bytes(data) :]
    return data[2 + data[1] :]


def _header_bytes(data: bytes) -> int:
    """Of a DER value: its tag, and one byte of its length or several."""
    return 2 if data[1] < 0x80 else 2 + (data[1] & 0x7F)
