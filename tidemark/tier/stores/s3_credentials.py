"""Credentials of an S3 configuration, for all clients of its store: one identity, one session.

A provider fetches them when they are first needed, and again before they expire. While a refresh
fails and the held ones are still valid, they stay in use. ``obstore`` calls the provider during an
upload, too, so that an upload may take longer than its credentials live.
"""

import functools
import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Protocol

from tidemark.tier.stores.aws_identity import (
    CredentialsMissing,
    StsAccess,
    ambient_credentials,
    assumed_role,
)
from tidemark.tier.stores.aws_signature import AwsCredentials

if TYPE_CHECKING:
    from obstore.store import S3Credential

logger = logging.getLogger(__name__)

#: Credentials are refreshed this long before they expire, or in the last quarter of a short life.
REFRESH_BEFORE_S = 600.0
#: Pause after a refresh that failed, while the held credentials are valid.
RETRY_S = 10.0
#: Pause without valid credentials. It is shorter, because all requests fail meanwhile.
_FAILURE_S = 2.0
#: ``obstore`` requests credentials again 300 s before they expire. It receives an early expiry, so
#: that it keeps credentials which a store has rejected for a minute at most.
_OBSTORE_S = 360.0


class HasIdentity(Protocol):
    """Identity of an S3 configuration. Its class is not imported: that would be a cycle."""

    @property
    def keys(self) -> AwsCredentials | None: ...

    @property
    def role_arn(self) -> str: ...

    @property
    def region(self) -> str: ...

    @property
    def ca(self) -> str: ...


@dataclass(frozen=True, slots=True)
class _Held:
    credentials: AwsCredentials
    refresh_s: float


class CredentialProvider:
    """Credentials of one identity. Thread-safe.

    ``fetch`` may block, and raises CredentialsMissing.
    """

    def __init__(
        self, fetch: Callable[[], AwsCredentials], wall_s: Callable[[], float] = time.time
    ) -> None:
        self._fetch = fetch
        self._wall_s = wall_s
        self._lock = threading.Lock()
        self._held: _Held | None = None
        #: The last failure, and until when it is repeated instead of another attempt.
        self._failure: tuple[CredentialsMissing, float] | None = None

    def current(self) -> AwsCredentials:
        """Return credentials that are valid now. Blocks; raises CredentialsMissing."""
        held, now_s = self._held, self._wall_s()
        if held is not None and now_s < held.refresh_s:
            return held.credentials
        # One thread refreshes. Others do not wait for it while the held ones are valid.
        usable = held is not None and _is_valid(held.credentials, now_s)
        if not self._lock.acquire(blocking=not usable):
            assert held is not None
            return held.credentials
        try:
            return self._refreshed()
        finally:
            self._lock.release()

    def reject(self, rejected: AwsCredentials) -> None:
        """Forget credentials that the store has called expired, although they should be valid."""
        held = self._held
        if held is not None and held.credentials == rejected and rejected.expires_s is not None:
            logger.info("the store rejects the credentials of %s as expired", rejected.source)
            self._held = None

    def for_obstore(self) -> "S3Credential":
        """Return the credentials as ``obstore`` takes them from its ``credential_provider``."""
        found = self.current()
        expires_s = found.expires_s
        if expires_s is not None:
            expires_s = min(expires_s, self._wall_s() + _OBSTORE_S)
        credential: S3Credential = {
            "access_key_id": found.access_key_id,
            "secret_access_key": found.secret_access_key,
            "token": found.session_token or None,
            "expires_at": None if expires_s is None else datetime.fromtimestamp(expires_s, UTC),
        }
        return credential

    def _refreshed(self) -> AwsCredentials:
        """Fetch credentials, unless another thread just has; the lock is held."""
        held, now_s = self._held, self._wall_s()
        if held is not None and now_s < held.refresh_s:
            return held.credentials
        # Every thread would otherwise wait for the same source to fail.
        if self._failure is not None and now_s < self._failure[1]:
            raise CredentialsMissing(str(self._failure[0]))
        try:
            fetched = self._fetch()
        except CredentialsMissing as error:
            if held is None or not _is_valid(held.credentials, now_s):
                self._failure = error, now_s + _FAILURE_S
                raise
            # A service that is down for a minute must not stop what still has credentials.
            logger.warning("the credentials cannot be refreshed yet: %s", error)
            again_s = min(now_s + RETRY_S, held.credentials.expires_s or now_s + RETRY_S)
            self._held = _Held(held.credentials, again_s)
            return held.credentials
        self._failure = None
        self._held = _Held(fetched, _refresh_s(fetched, self._wall_s()))
        if fetched.expires_s is not None:
            until = datetime.fromtimestamp(fetched.expires_s, UTC).isoformat(timespec="seconds")
            logger.info("S3 credentials of %s, valid until %s", fetched.source, until)
        return fetched


def provider_of(config: HasIdentity) -> CredentialProvider:
    """Return the provider of a configuration; those with the same identity share one."""
    return _provider(config.keys, config.role_arn, StsAccess(config.region, config.ca))


def ambient_provider(region: str) -> CredentialProvider:
    """Return the provider of the process's own identity, for other services than S3."""
    return _provider(None, "", StsAccess(region))


@functools.lru_cache(maxsize=32)
def _provider(keys: AwsCredentials | None, role_arn: str, sts: StsAccess) -> CredentialProvider:
    base = CredentialProvider(
        functools.partial(ambient_credentials, os.environ, sts) if keys is None else lambda: keys
    )
    if not role_arn:
        return base
    return CredentialProvider(lambda: assumed_role(base.current(), role_arn, os.environ, sts))


def _is_valid(credentials: AwsCredentials, now_s: float) -> bool:
    return credentials.expires_s is None or now_s < credentials.expires_s


def _refresh_s(credentials: AwsCredentials, now_s: float) -> float:
    """Return when to refresh credentials that were fetched now."""
    if credentials.expires_s is None:
        return float("inf")
    return credentials.expires_s - min(REFRESH_BEFORE_S, (credentials.expires_s - now_s) / 4)
