"""From the accepted storage configuration to an open tier.

The configuration is the JSON that the controller sends to brokers in ``PartitionStates``
(``remote_storage``), credentials resolved:

    {"filesystem": {"path": "/srv/tier"}}
    {"s3": {"endpoint": "http://...", "region": "us-east-1", "buckets": ["b1", "b2"],
            "prefix": "prod", "accessKeyId": "...", "secretAccessKey": "..."}}
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from tidemark.tier.directory import DirectoryStore
from tidemark.tier.manifest import PAGE_CACHE_BYTES, ManifestStore
from tidemark.tier.objects import ObjectStore
from tidemark.tier.reader import TierReader
from tidemark.tier.s3 import S3Config, S3Store
from tidemark.tier.storage import NO_BUCKET, BucketStorageManager
from tidemark.tier.topics import TopicCatalog


class InvalidConfig(ValueError):
    """The remote storage configuration cannot be used; the message names the field."""


@dataclass(frozen=True, slots=True)
class RemoteStorageConfig:
    """A directory's path, or an S3: exactly one of them."""

    filesystem: Path | None = None
    s3: S3Config | None = None

    @classmethod
    def from_json(cls, text: str) -> "RemoteStorageConfig":
        """Parse the JSON above. Raises InvalidConfig."""
        try:
            fields = json.loads(text)
        except ValueError as error:
            raise InvalidConfig("remoteStorage is not JSON") from error
        kinds = set(fields) if isinstance(fields, dict) else set()
        if kinds == {"filesystem"}:
            path = Path(_text(_section(fields, "filesystem"), "filesystem.path"))
            if not path.is_absolute():
                raise InvalidConfig("remoteStorage: filesystem.path must be absolute")
            return cls(filesystem=path)
        if kinds == {"s3"}:
            return cls(s3=_s3_of(_section(fields, "s3")))
        raise InvalidConfig("remoteStorage: give either filesystem or s3")

    def to_json(self) -> str:
        """The JSON above; with the secret."""
        if self.filesystem is not None:
            return json.dumps({"filesystem": {"path": str(self.filesystem)}})
        if self.s3 is None:
            raise InvalidConfig("remoteStorage: give either filesystem or s3")
        fields = {
            "endpoint": self.s3.endpoint,
            "region": self.s3.region,
            "buckets": list(self.s3.buckets),
            "prefix": self.s3.prefix,
            "accessKeyId": self.s3.access_key_id,
            "secretAccessKey": self.s3.secret_access_key,
        }
        return json.dumps({"s3": fields})


@dataclass(frozen=True, slots=True)
class Tier:
    """Everything that works on one remote storage. ``store``: the metadata's (first) bucket."""

    store: ObjectStore
    manifests: ManifestStore
    segments: BucketStorageManager
    topics: TopicCatalog
    reader: TierReader


def open_store(config: RemoteStorageConfig) -> ObjectStore:
    """The store that holds identity, heads, pages and topics. Opening reaches for nothing yet."""
    if config.filesystem is not None:
        return DirectoryStore(config.filesystem)
    if config.s3 is not None:
        return S3Store(config.s3)
    raise InvalidConfig("remoteStorage: give either filesystem or s3")


def open_tier(config: RemoteStorageConfig, *, page_cache_bytes: int = PAGE_CACHE_BYTES) -> Tier:
    """Stores and everything on them; ``identity.ensure_identity(tier.store, ...)`` comes first."""
    store = open_store(config)
    buckets = {NO_BUCKET: store}
    if config.s3 is not None:
        first, *others = config.s3.buckets
        buckets = {first: store} | {name: S3Store(config.s3, name) for name in others}
    manifests = ManifestStore(store, page_cache_bytes=page_cache_bytes)
    topics = TopicCatalog(store)
    reader = TierReader(manifests, topics)
    return Tier(store, manifests, BucketStorageManager(buckets), topics, reader)


def _s3_of(fields: dict[str, object]) -> S3Config:
    buckets = fields.get("buckets")
    if not isinstance(buckets, list) or not buckets or not all(_is_name(name) for name in buckets):
        raise InvalidConfig("remoteStorage: s3.buckets must name at least one bucket")
    if len(set(buckets)) != len(buckets):
        raise InvalidConfig("remoteStorage: s3.buckets names a bucket twice")
    endpoint = _optional_text(fields, "endpoint", "")
    if endpoint and not endpoint.startswith(("http://", "https://")):
        raise InvalidConfig("remoteStorage: s3.endpoint must begin with http:// or https://")
    return S3Config(
        buckets=tuple(buckets),
        access_key_id=_text(fields, "s3.accessKeyId"),
        secret_access_key=_text(fields, "s3.secretAccessKey"),
        endpoint=endpoint,
        region=_optional_text(fields, "region", "us-east-1") or "us-east-1",
        prefix=_optional_text(fields, "prefix", "").strip("/"),
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _section(fields: dict[str, object], name: str) -> dict[str, object]:
    section = fields[name]
    if not isinstance(section, dict):
        raise InvalidConfig(f"remoteStorage: {name} must be an object")
    return cast("dict[str, object]", section)


def _text(fields: dict[str, object], path: str) -> str:
    value = fields.get(path.split(".")[1])
    if not isinstance(value, str) or not value:
        raise InvalidConfig(f"remoteStorage: {path} is missing")
    return value


def _optional_text(fields: dict[str, object], name: str, default: str) -> str:
    value = fields.get(name)
    if value is None:
        return default
    if not isinstance(value, str):
        raise InvalidConfig(f"remoteStorage: s3.{name} must be a text")
    return value
