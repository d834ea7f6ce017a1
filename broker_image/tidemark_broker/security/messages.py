"""Client messages of single-message mechanisms:

PLAIN (RFC 4616) and OAUTHBEARER (RFC 7628, KIP-255).
"""

import re
from dataclasses import dataclass, field

from tidemark_broker.security.errors import AuthenticationFailed

_SEPARATOR = "\x01"
_GS2 = re.compile(r"[ny],(?:a=(?P<authzid>[^,]*))?,")
_BEARER = re.compile(r"[Bb]earer +(?P<token>[A-Za-z0-9._~+/-]+=*) *")


@dataclass(frozen=True, slots=True)
class PlainMessage:
    name: str
    password: str = field(repr=False)


def plain(message: bytes) -> PlainMessage:
    """Parse a PLAIN message. Raises :class:`AuthenticationFailed`."""
    # authzid NUL authcid NUL password; the first may be empty.
    parts = message.split(b"\x00")
    if len(parts) != 3 or not parts[1] or not parts[2]:
        raise AuthenticationFailed("the PLAIN message lacks a name or a password")
    try:
        authzid, name, password = (part.decode("utf-8") for part in parts)
    except UnicodeDecodeError:
        raise AuthenticationFailed("the PLAIN message is not UTF-8") from None
    # Acting for another user (authorization id) is not supported, as in Kafka.
    if authzid not in ("", name):
        raise AuthenticationFailed("the client requests to act for another user")
    return PlainMessage(name, password)


@dataclass(frozen=True, slots=True)
class BearerMessage:
    """A token, and the requested name ("" if absent)."""

    token: str = field(repr=False)
    authzid: str


def bearer(message: bytes) -> BearerMessage:
    """Parse an OAUTHBEARER message. Raises :class:`AuthenticationFailed`."""
    try:
        header, *pairs = message.decode("ascii").split(_SEPARATOR)
    except UnicodeDecodeError:
        raise AuthenticationFailed("the OAUTHBEARER message is not ASCII") from None
    gs2 = _GS2.fullmatch(header)
    values = dict(pair.split("=", 1) for pair in pairs if "=" in pair)
    found = _BEARER.fullmatch(values.get("auth", ""))
    # Fields are separated by ^A and terminated by two of them (RFC 7628, 3.1).
    if gs2 is None or found is None or pairs[-2:] != ["", ""]:
        raise AuthenticationFailed("the OAUTHBEARER message is malformed")
    return BearerMessage(found["token"], gs2["authzid"] or "")
