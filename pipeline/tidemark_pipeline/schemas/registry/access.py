"""Address of a schema registry and credentials for it, as options give them.

Pure. A password or a token may be in the environment instead.
"""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from urllib.parse import urlsplit

from tidemark_pipeline.errors import ExportError

PASSWORD_VARIABLE, TOKEN_VARIABLE = "TIDEMARK_REGISTRY_PASSWORD", "TIDEMARK_REGISTRY_TOKEN"
#: Options with their meaning, for the command line and the documentation.
OPTIONS = {
    "subject": "subject of the topic's values; default: the topic's name with -value",
    "key-subject": "subject of the topic's keys; default: the topic's name with -key",
    "unknown": "treatment of a record with an unknown schema id: dead-letter (default) or stop",
    "user": "user for basic authentication",
    "password": f"password of the user; default: {PASSWORD_VARIABLE}",
    "token": f"bearer token; default: {TOKEN_VARIABLE}",
    "ca": "PEM file with the authority of the registry's certificate; default: the system's",
    "certificate": "PEM file with the client's certificate, if the registry requires one",
    "key": "PEM file with the certificate's key, without a password",
    "timeout": "seconds for one request; default: 10",
    "patience": "seconds for which a failed query is retried; default: 60",
}


class UnknownSchemaPolicy(StrEnum):
    """Treatment of a record whose schema id the registry does not know."""

    DEAD_LETTER = "dead-letter"
    STOP = "stop"


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryAccess:
    """Addresses and credentials of one registry.

    ``urls``: tried in turn. ``timeout_s``: of one request. ``patience_s``: of one query with all
    its retries.
    """

    urls: tuple[str, ...]
    subject: str = ""
    key_subject: str = ""
    unknown: UnknownSchemaPolicy = UnknownSchemaPolicy.DEAD_LETTER
    user: str = ""
    password: str = field(default="", repr=False)
    token: str = field(default="", repr=False)
    ca: str = ""
    certificate: str = ""
    key: str = ""
    timeout_s: float = 10.0
    patience_s: float = 60.0

    def subject_of(self, topic: str) -> str:
        """Return the subject of a topic's values, by default as serializers name it."""
        return self.subject or f"{topic}-value"

    def key_subject_of(self, topic: str) -> str:
        """Return the subject of a topic's keys."""
        return self.key_subject or f"{topic}-key"

    @classmethod
    def of(
        cls,
        url: str,
        given: Mapping[str, str],
        environment: Mapping[str, str] = os.environ,
    ) -> "RegistryAccess":
        """Return the access that a registry's address and options describe.

        ``url``: one address or several, separated by commas. ``given``: values of :data:`OPTIONS`.
        ``environment``: may have the password or token. Raises :class:`ExportError`.
        """
        # An unknown option is an error, as it may be a misspelt credential.
        unknown = sorted(set(given) - set(OPTIONS))
        if unknown:
            raise ExportError(
                f"the registry has no option {', '.join(unknown)}. "
                f"Its options are {', '.join(OPTIONS)}"
            )
        urls = tuple(part.strip().rstrip("/") for part in url.split(",") if part.strip())
        for address in urls:
            _check(address)
        if not urls:
            raise ExportError("name the registry's address, as http://registry:8081")
        if given.get("unknown", UnknownSchemaPolicy.STOP) not in set(UnknownSchemaPolicy):
            raise ExportError("the registry's option unknown is dead-letter or stop")
        # TLS needs both the certificate and its key.
        if ("certificate" in given) != ("key" in given):
            raise ExportError("the registry's options certificate and key go together")
        # The environment's password is used only with a user, its token only without one.
        user = given.get("user", "")
        return cls(
            urls=urls,
            subject=given.get("subject", ""),
            key_subject=given.get("key-subject", ""),
            unknown=UnknownSchemaPolicy(given.get("unknown", UnknownSchemaPolicy.DEAD_LETTER)),
            user=user,
            password=given.get("password")
            or (environment.get(PASSWORD_VARIABLE, "") if user else ""),
            token=given.get("token") or ("" if user else environment.get(TOKEN_VARIABLE, "")),
            ca=given.get("ca", ""),
            certificate=given.get("certificate", ""),
            key=given.get("key", ""),
            timeout_s=_seconds(given, "timeout", 10.0),
            patience_s=_seconds(given, "patience", 60.0),
        )


def _check(url: str) -> None:
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.query or parts.fragment:
        raise ExportError(f"{url!r} is no address of a registry: write http://registry:8081")
    # Addresses appear in messages and logs.
    if parts.username or parts.password:
        raise ExportError(
            f"{parts.hostname}: give the registry's user and password as options, not in its "
            "address"
        )


def _seconds(given: Mapping[str, str], name: str, default: float) -> float:
    try:
        seconds = float(given.get(name, default))
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 3600:
        raise ExportError(f"the registry's option {name} is a number of seconds, up to 3600")
    return seconds
