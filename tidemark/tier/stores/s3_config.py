"""Any S3 as remote store: its configuration."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self, cast

from tidemark.tier.stores.config_fields import InvalidConfig, optional_text, required_text
from tidemark.tier.stores.endpoint import S3Endpoint, parse_endpoint

_REGION = "us-east-1"
#: Amazon S3, "Bucket naming rules".
_BUCKET = re.compile("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IPV4 = re.compile(r"\d+(\.\d+){3}")
#: Where a job finds its keys when its options have none.
_KEY_VARIABLES = {
    "accessKeyId": "AWS_ACCESS_KEY_ID",
    "secretAccessKey": "AWS_SECRET_ACCESS_KEY",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config:
    """Buckets as remote store.

    ``endpoint`` empty: AWS in ``region``. ``buckets``: the first one has all metadata, segments are
    in all of them. ``prefix``: folder of all objects, empty for none.
    """

    kind: ClassVar[str] = "s3"
    location_names: ClassVar[tuple[str, ...]] = ("endpoint", "region", "buckets", "prefix")
    credential_names: ClassVar[tuple[str, ...]] = tuple(_KEY_VARIABLES)
    instruction_names: ClassVar[tuple[str, ...]] = ("createBuckets",)
    option: ClassVar[tuple[str, str]] = ("endpoint", "S3")

    buckets: tuple[str, ...]
    access_key_id: str
    secret_access_key: str = field(repr=False)
    endpoint: str = ""
    region: str = _REGION
    prefix: str = ""

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> Self:
        """Parse the fields of the configuration. Raises InvalidConfig."""
        endpoint = optional_text(fields, cls.kind, "endpoint", "")
        if endpoint:
            parse_endpoint(endpoint)
        return cls(
            buckets=_buckets(fields.get("buckets")),
            access_key_id=required_text(fields, cls.kind, "accessKeyId"),
            secret_access_key=required_text(fields, cls.kind, "secretAccessKey"),
            endpoint=endpoint,
            region=optional_text(fields, cls.kind, "region", _REGION) or _REGION,
            prefix=_prefix(optional_text(fields, cls.kind, "prefix", "").strip("/")),
        )

    @classmethod
    def from_options(cls, given: Mapping[str, str], environment: Mapping[str, str]) -> Self:
        """Parse the options of a Spark job.

        ``given``: options by name; buckets are separated by commas. Keys that are not given are
        read from the ``environment``. Raises InvalidConfig.
        """
        if not given.get("buckets"):
            raise InvalidConfig("the option 'buckets' is missing: name the buckets of the tier")
        # Options win over the environment.
        keys = {
            name: given.get(name) or environment.get(variable, "")
            for name, variable in _KEY_VARIABLES.items()
        }
        if not all(keys.values()):
            raise InvalidConfig(
                "S3 needs keys: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or the options "
                "'accessKeyId' and 'secretAccessKey'"
            )
        return cls.parse({**given, **keys, "buckets": given["buckets"].split(",")})

    def endpoints(self) -> tuple[S3Endpoint, ...]:
        """Return the configured addresses."""
        return (parse_endpoint(self.endpoint),) if self.endpoint else ()

    def fields(self) -> dict[str, object]:
        """Return the fields that ``parse`` reads, the secret included."""
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "buckets": list(self.buckets),
            "prefix": self.prefix,
            "accessKeyId": self.access_key_id,
            "secretAccessKey": self.secret_access_key,
        }

    @staticmethod
    def moved(old: Mapping[str, object], new: Mapping[str, object]) -> str:
        """Return why the location ``new`` is another store than ``old``, "" if it is the same.

        Adding buckets is allowed. Removing one, or changing the first one, would lose objects.
        """
        for name in ("endpoint", "prefix"):
            if old.get(name) != new.get(name):
                return f"s3.{name} changed"
        # Segments are in any of the buckets, metadata only in the first one.
        kept = cast("Sequence[str]", old["buckets"])
        present = cast("Sequence[str]", new["buckets"])
        dropped = sorted(set(kept) - set(present))
        if dropped:
            return f"bucket {dropped[0]} was dropped"
        if kept[0] != present[0]:
            return f"bucket {kept[0]} holds the metadata and has to stay the first"
        return ""


def _buckets(value: object) -> tuple[str, ...]:
    """Return the names of the buckets. Raises InvalidConfig for names that S3 does not allow."""
    if not isinstance(value, list) or not value or not all(_is_name(name) for name in value):
        raise InvalidConfig("remoteStorage: s3.buckets must name at least one bucket")
    if len(set(value)) != len(value):
        raise InvalidConfig("remoteStorage: s3.buckets names a bucket twice")
    for name in value:
        if not _BUCKET.fullmatch(name) or ".." in name or _IPV4.fullmatch(name):
            raise InvalidConfig(
                f"remoteStorage: s3.buckets: {name!r} is no name of a bucket: 3 to 63 lower-case "
                "letters, digits, dots and hyphens, not an IP address"
            )
    return tuple(value)


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _prefix(text: str) -> str:
    if {".", ".."} & set(text.split("/")):
        raise InvalidConfig("remoteStorage: s3.prefix must not contain . or .. as a folder")
    return text
