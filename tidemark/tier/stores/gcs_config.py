"""Google Cloud Storage as remote store: its configuration."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Self

from tidemark.tier.stores.config_fields import (
    InvalidConfig,
    moved_places,
    optional_text,
    place_names,
    prefix_text,
)
from tidemark.tier.stores.endpoint import S3Endpoint, parse_endpoint, require_own_identity_host
from tidemark.tier.stores.key_ring import EncryptableStorage

_ENDPOINT = "https://storage.googleapis.com"
#: Hosts that may receive a token of the machine's own identity.
_OWN_HOSTS = (".googleapis.com",)
#: Cloud Storage, "About Cloud Storage buckets", without the names of domains.
_BUCKET = re.compile("[a-z0-9][a-z0-9._-]{1,61}[a-z0-9]")
_KEY_VARIABLE = "GOOGLE_SERVICE_ACCOUNT_KEY"
#: Fields of a service account's JSON that the client needs.
_KEY_FIELDS = ("client_email", "private_key", "private_key_id")


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsConfig(EncryptableStorage):
    """Buckets of Google Cloud Storage as remote store.

    ``endpoint`` empty: Google's own. ``buckets``: the first one has all metadata, segments are in
    all of them. ``prefix``: folder of all objects, empty for none. ``service_account_key``: JSON of
    a service account, empty for application default credentials.
    """

    kind: ClassVar[str] = "gcs"
    location_names: ClassVar[tuple[str, ...]] = ("endpoint", "buckets", "prefix")
    credential_names: ClassVar[tuple[str, ...]] = ("serviceAccountKey",)
    setting_names: ClassVar[tuple[str, ...]] = ()
    instruction_names: ClassVar[tuple[str, ...]] = ()
    option: ClassVar[tuple[str, str]] = ("storage=gcs", "Google Cloud Storage")

    buckets: tuple[str, ...]
    service_account_key: str = field(default="", repr=False)
    endpoint: str = ""
    prefix: str = ""

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> Self:
        """Parse the fields of the configuration. Raises InvalidConfig."""
        endpoint = optional_text(fields, cls.kind, "endpoint", "")
        key = optional_text(fields, cls.kind, "serviceAccountKey", "")
        # A token of the machine's own identity must not reach another server.
        if key:
            _check_key(key)
        elif endpoint:
            require_own_identity_host(parse_endpoint(endpoint, cls.kind), cls.kind, _OWN_HOSTS)
        config = cls(
            buckets=place_names(
                fields,
                cls.kind,
                "buckets",
                place="bucket",
                is_allowed=lambda name: bool(_BUCKET.fullmatch(name)) and ".." not in name,
                allowed="3 to 63 lower-case letters, digits, dots, hyphens and underscores",
            ),
            service_account_key=key,
            endpoint=endpoint,
            prefix=prefix_text(fields, cls.kind),
        )
        # Parsed once, so that an invalid address is refused here.
        config.endpoints()
        return config

    @classmethod
    def from_options(cls, given: Mapping[str, str], environment: Mapping[str, str]) -> Self:
        """Parse the options of a job.

        ``given``: options by name; buckets are separated by commas. A key that is not given is read
        from the ``environment``. Raises InvalidConfig.
        """
        if not given.get("buckets"):
            raise InvalidConfig("the option 'buckets' is missing: name the buckets of the tier")
        key = given.get("serviceAccountKey") or environment.get(_KEY_VARIABLE, "")
        buckets = given["buckets"].split(",")
        return cls.parse({**given, "serviceAccountKey": key, "buckets": buckets})

    @property
    def address(self) -> str:
        """Address that requests are sent to."""
        return self.endpoint.rstrip("/") or _ENDPOINT

    def endpoints(self) -> tuple[S3Endpoint, ...]:
        """Return the configured addresses."""
        return (parse_endpoint(self.endpoint, self.kind),) if self.endpoint else ()

    def fields(self) -> dict[str, object]:
        """Return the fields that ``parse`` reads, the secret included."""
        return {
            "endpoint": self.endpoint,
            "buckets": list(self.buckets),
            "prefix": self.prefix,
            "serviceAccountKey": self.service_account_key,
        }

    @staticmethod
    def moved(old: Mapping[str, object], new: Mapping[str, object]) -> str:
        """Return why the location ``new`` is another store than ``old``, "" if it is the same."""
        same = ("endpoint", "prefix")
        return moved_places("gcs", old, new, same=same, places="buckets", place="bucket")


def _check_key(text: str) -> None:
    """Check that a text is the JSON of a service account.

    Raises InvalidConfig, without the text.
    """
    what = "remoteStorage: gcs.serviceAccountKey must be the JSON of a service account"
    try:
        key = json.loads(text)
    except ValueError:
        raise InvalidConfig(what) from None
    missing = [name for name in _KEY_FIELDS if not isinstance(key, dict) or name not in key]
    if missing:
        raise InvalidConfig(f"{what}: it has no {missing[0]}")
