"""Verification of OAUTHBEARER tokens with the keys at a URL (a JWK Set, RFC 7517).

Keys are read in a thread: with the first token, periodically, and if a token names an unknown key,
but at most every few seconds. If they are not readable, the known keys remain in use. Only
asymmetric signatures are accepted.
"""

import asyncio
import json
import logging
import time
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import jwt

from tidemark.tls.trust import trusting_context
from tidemark_broker.config_entries import ConfigError, integer_of, list_of, text_of
from tidemark_broker.security.errors import AuthenticationFailed

logger = logging.getLogger(__name__)

ALGORITHMS = (
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA",
)  # fmt: skip
_SCHEMES = ("https://", "http://", "file://")
_BYTES_MAX = 1024 * 1024
_TIMEOUT_S = 10.0
#: Minimum pause between two reads of the keys.
_PAUSE_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenSettings:
    """Kafka's ``sasl.oauthbearer.*`` keys; None and () if nothing is expected."""

    jwks_url: str
    refresh_s: float
    audience: tuple[str, ...]
    issuer: str | None
    skew_s: int
    name_claim: str

    @classmethod
    def of(cls, entries: Mapping[str, str]) -> Self:
        """Read the settings. Raises :class:`ConfigError`."""
        url = text_of(entries, "sasl.oauthbearer.jwks.endpoint.url")
        if not url.startswith(_SCHEMES):
            raise ConfigError(
                f"sasl.oauthbearer.jwks.endpoint.url must begin with {', '.join(_SCHEMES)}"
            )
        return cls(
            jwks_url=url,
            refresh_s=integer_of(entries, "sasl.oauthbearer.jwks.endpoint.refresh.ms") / 1000,
            audience=list_of(text_of(entries, "sasl.oauthbearer.expected.audience")),
            issuer=text_of(entries, "sasl.oauthbearer.expected.issuer") or None,
            skew_s=integer_of(entries, "sasl.oauthbearer.clock.skew.seconds"),
            name_claim=text_of(entries, "sasl.oauthbearer.sub.claim.name"),
        )


@dataclass(frozen=True, slots=True)
class Token:
    """User of a verified token, and its expiry (seconds since 1970, skew included)."""

    name: str
    expires_s: float


class Keys:
    """Keys of a URL, by id. Used from the loop only."""

    def __init__(self, url: str, refresh_s: float, now_s: Callable[[], float]) -> None:
        self._url = url
        self._refresh_s = refresh_s
        self._now_s = now_s
        self._read_s = self._tried_s = float("-inf")
        self._reading = asyncio.Lock()
        self._keys: Mapping[str | None, jwt.PyJWK] = {}

    async def find(self, key_id: str | None) -> jwt.PyJWK | None:
        """Return the key with that id, or None."""
        if self._is_due(key_id):
            async with self._reading:
                if self._is_due(key_id):  # another connection may have read them meanwhile
                    await self._read()
        return self._keys.get(key_id)

    def _is_due(self, key_id: str | None) -> bool:
        now_s = self._now_s()
        is_old = now_s - self._read_s >= self._refresh_s
        return (is_old or key_id not in self._keys) and now_s - self._tried_s >= _PAUSE_S

    async def _read(self) -> None:
        # Set before the read, so that a failing URL is not read for every token.
        self._tried_s = self._now_s()
        try:
            self._keys = await asyncio.to_thread(_fetch, self._url)
            self._read_s = self._tried_s
        except (OSError, ValueError) as error:
            logger.warning("%s: the token keys are not readable: %s", self._url, error)
        except Exception as error:  # noqa: BLE001 - any malformed answer; its text may have keys
            logger.warning("%s: the token keys are invalid: %s", self._url, type(error).__name__)


def _fetch(url: str) -> Mapping[str | None, jwt.PyJWK]:
    """Read the keys (blocks). Raises any error of a malformed answer."""
    with urllib.request.urlopen(url, timeout=_TIMEOUT_S, context=trusting_context()) as answer:
        text = answer.read(_BYTES_MAX + 1)
    if len(text) > _BYTES_MAX:
        raise ValueError(f"more than {_BYTES_MAX} bytes")
    keys = jwt.PyJWKSet.from_dict(json.loads(text)).keys
    # With a single key a token need not name it.
    if len(keys) == 1:
        return {keys[0].key_id: keys[0], None: keys[0]}
    return {key.key_id: key for key in keys if key.key_id is not None}


class TokenChecker:
    """Verification of tokens against settings and keys."""

    def __init__(
        self, settings: TokenSettings, now_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._settings = settings
        self._keys = Keys(settings.jwks_url, settings.refresh_s, now_s)

    async def check(self, token: str) -> Token:
        """Verify a token; return its user. Raises :class:`AuthenticationFailed`."""
        try:
            key_id = jwt.get_unverified_header(token).get("kid")
            key = await self._keys.find(key_id)
            if key is None:
                raise AuthenticationFailed("the token is signed with an unknown key")
            return self._token(self._claims(token, key))
        except (jwt.PyJWTError, ArithmeticError, TypeError, ValueError) as error:
            raise AuthenticationFailed(f"the token is invalid: {type(error).__name__}") from None

    def _claims(self, token: str, key: jwt.PyJWK) -> dict[str, Any]:
        """Return the claims of a token, after checking signature, expiry, audience and issuer.

        Audience and issuer are checked only if the settings expect them. Raises a ``jwt`` error.
        """
        settings = self._settings
        return jwt.decode(
            token,
            key,
            # The key determines the algorithm, so a token cannot select a weaker one.
            algorithms=[name for name in ALGORITHMS if name == key.algorithm_name],
            audience=settings.audience or None,
            issuer=settings.issuer,
            leeway=settings.skew_s,
            options={
                "require": ["exp"] + (["iss"] if settings.issuer else []),
                "verify_aud": bool(settings.audience),
            },
        )

    def _token(self, claims: Mapping[str, Any]) -> Token:
        name = claims.get(self._settings.name_claim)
        if not isinstance(name, str) or not name or len(name) > 255:
            raise AuthenticationFailed(f"the token has no name in {self._settings.name_claim}")
        return Token(name, float(claims["exp"]) + self._settings.skew_s)
