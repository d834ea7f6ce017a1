"""Configuration of a remote store: one of a few kinds, each with a configuration class of its own.

The configuration is written in several places, always with the same names:

* in a Cluster's ``spec.remoteStorage``, with a Secret's name instead of the credentials,
* in its ``status.acceptedStorage`` as a *location*, without credentials,
* in the JSON that the controller sends to brokers, with resolved credentials, if there are any:

      {"filesystem": {"path": "/srv/tier"}}
      {"s3": {"endpoint": "http://...", "region": "us-east-1", "buckets": ["b1", "b2"],
              "prefix": "prod", "accessKeyId": "...", "secretAccessKey": "..."}}
      {"gcs": {"buckets": ["b1"], "prefix": "prod", "serviceAccountKey": "{...}"}}
      {"azure": {"account": "a", "containers": ["c1"], "prefix": "prod", "credential": "..."}}

* in the options of a Spark job, in one flat map. The option ``storage`` names the kind; a directory
  and an S3 endpoint need none.

Each kind also takes the keys that encrypt segments (``key_ring``): in a manifest the name of their
Secret, in the JSON the text ``encryptionKeys``, in options the file ``encryptionKeysLocation``.

A kind has its names (``location_names``, ``credential_names``, ``setting_names`` for how requests
are made, ``instruction_names`` for further fields of a manifest, and the option by which a job
selects it), ``parse``, ``from_options``, ``endpoints``, ``fields`` and ``moved``. This module opens
and checks stores.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import ClassVar, Self, assert_never, get_args

from tidemark.error_text import error_text
from tidemark.tier.stores.azure import azure_store
from tidemark.tier.stores.azure_config import AzureConfig
from tidemark.tier.stores.bucket import BucketStore
from tidemark.tier.stores.config_fields import InvalidConfig, optional_text, required_text
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.endpoint import S3Endpoint
from tidemark.tier.stores.gcs import gcs_store
from tidemark.tier.stores.gcs_config import GcsConfig
from tidemark.tier.stores.key_ring import KEYS_NAME, KEYS_OPTION, EncryptableStorage, KeyRing
from tidemark.tier.stores.objects import NO_BUCKET, ObjectStore
from tidemark.tier.stores.s3 import S3Store, ensure_buckets
from tidemark.tier.stores.s3_config import S3Config


@dataclass(frozen=True, slots=True)
class FilesystemConfig(EncryptableStorage):
    """Directory as remote store. ``path``: absolute, the same on every broker."""

    kind: ClassVar[str] = "filesystem"
    location_names: ClassVar[tuple[str, ...]] = ("path",)
    credential_names: ClassVar[tuple[str, ...]] = ()
    setting_names: ClassVar[tuple[str, ...]] = ()
    instruction_names: ClassVar[tuple[str, ...]] = ()
    option: ClassVar[tuple[str, str]] = ("path", "a directory")

    path: Path

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> Self:
        """Parse the fields of the configuration. Raises InvalidConfig."""
        path = Path(required_text(fields, cls.kind, "path"))
        if not path.is_absolute():
            raise InvalidConfig("remoteStorage: filesystem.path must be absolute")
        return cls(path)

    @classmethod
    def from_options(cls, given: Mapping[str, str], environment: Mapping[str, str]) -> Self:
        """Parse the options of a job. Raises InvalidConfig."""
        del environment
        return cls.parse(given)

    def endpoints(self) -> tuple[S3Endpoint, ...]:
        """Return no endpoints: a directory has none."""
        return ()

    def fields(self) -> dict[str, object]:
        """Return the fields that ``parse`` reads."""
        return {"path": str(self.path)}

    @staticmethod
    def moved(old: Mapping[str, object], new: Mapping[str, object]) -> str:
        """Return why the location ``new`` is another store than ``old``; "" if it is the same."""
        return "" if old["path"] == new["path"] else "filesystem.path changed"


RemoteStorage = FilesystemConfig | S3Config | GcsConfig | AzureConfig

KINDS: Mapping[str, type[RemoteStorage]] = {kind.kind: kind for kind in get_args(RemoteStorage)}

#: Option of a job that names the kind of storage.
STORAGE = "storage"

#: Names of the options by which a job locates a tier.
OPTIONS = frozenset(
    name
    for kind in KINDS.values()
    for name in (*kind.location_names, *kind.credential_names, *kind.setting_names)
) | {S3Config.ca_option, KEYS_OPTION, STORAGE}


#: Keys of a Secret with credentials that may be missing: of temporary ones only.
OPTIONAL_CREDENTIALS = frozenset({"sessionToken"})


def from_json(text: str) -> RemoteStorage:
    """Return the configuration in the JSON above. Raises InvalidConfig."""
    try:
        sections = json.loads(text)
    except ValueError as error:
        raise InvalidConfig("remoteStorage is not JSON") from error
    return parse(sections)


def parse(sections: object) -> RemoteStorage:
    """Return the configuration in the object above. Raises InvalidConfig."""
    kind, fields = _section(sections)
    config = KINDS[kind].parse(fields)
    # An empty text is not the same as none: it is refused.
    if KEYS_NAME not in fields:
        return config
    return replace(config, key_ring=KeyRing.parse(optional_text(fields, kind, KEYS_NAME, "")))


def to_json(config: RemoteStorage) -> str:
    """Return the JSON above, secrets included."""
    keys = {KEYS_NAME: config.key_ring.to_text()} if config.key_ring.keys else {}
    return json.dumps({config.kind: {**config.fields(), **keys}})


def from_options(given: Mapping[str, str], environment: Mapping[str, str]) -> RemoteStorage:
    """Return the configuration in a job's options; other options are ignored.

    Raises InvalidConfig.
    """
    # The named kind, else the option with the location; credentials may come from the environment.
    # Buckets without an endpoint are on AWS.
    named = given.get(STORAGE, "")
    if named and named not in KINDS:
        raise InvalidConfig(f"the option 'storage' is {named!r}: name one of {', '.join(KINDS)}")
    chosen = [
        kind
        for kind in KINDS.values()
        if kind.kind == named or (not named and kind.option[0] in given)
    ]
    if not chosen and "buckets" in given:
        chosen = [S3Config]
    if len(chosen) != 1:
        choices = " or ".join(f"'{name}' ({what})" for name, what in _options())
        raise InvalidConfig(f"say where the tier is: either {choices}")
    config = chosen[0].from_options(
        {name: value for name, value in given.items() if name in OPTIONS}, environment
    )
    path = given.get(KEYS_OPTION, "")
    return replace(config, key_ring=KeyRing.parse(_read_keys(path))) if path else config


def _read_keys(path: str) -> str:
    """Return the text of a file with encryption keys. Raises InvalidConfig."""
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise InvalidConfig(
            f"the encryption keys in {path} cannot be read: {error_text(error)}"
        ) from error


def must_be_named(kind: str) -> bool:
    """Return whether a job's options must name the kind of storage."""
    return KINDS[kind].option[0] == f"{STORAGE}={kind}"


def location_of(spec: Mapping[str, object] | None) -> dict[str, dict[str, object]] | None:
    """Return the location that a status records of ``spec.remoteStorage``: all but the
    credentials.
    """
    if not spec:
        return None
    kind, fields = _section({name: value for name, value in spec.items() if value})
    return {kind: {name: fields[name] for name in KINDS[kind].location_names if fields.get(name)}}


def settings_of(spec: Mapping[str, object]) -> dict[str, object]:
    """Return the fields of ``spec.remoteStorage`` that say how requests are made."""
    kind, fields = _section({name: value for name, value in spec.items() if value})
    return {name: fields[name] for name in KINDS[kind].setting_names if fields.get(name)}


def credential_names(spec: Mapping[str, object]) -> tuple[str, ...]:
    """Return the fields of ``spec.remoteStorage`` that are in a Secret."""
    return KINDS[_section(spec)[0]].credential_names


def moved(old: Mapping[str, object], new: Mapping[str, object]) -> str:
    """Return why the location ``new`` is another store than ``old``; "" if it is the same."""
    old_kind, old_fields = _section(old)
    new_kind, new_fields = _section(new)
    if old_kind != new_kind:
        return "the kind of storage changed"
    return KINDS[old_kind].moved(old_fields, new_fields)


def open_stores(config: RemoteStorage) -> dict[str, ObjectStore]:
    """Return a store for each bucket, in the configured order; nothing is connected yet.

    The first one has identity, heads, pages and topics.
    """
    match config:
        case FilesystemConfig():
            return {NO_BUCKET: DirectoryStore(config.path)}
        case S3Config():
            return {name: S3Store(config, name) for name in config.buckets}
        case GcsConfig() | AzureConfig():
            return {**_bucket_stores(config)}
        case _:
            assert_never(config)


def ensure_place(config: RemoteStorage, *, create: bool, in_use: bool) -> None:
    """Check that the store's directory or buckets exist, and create missing buckets on request.

    ``create``: create missing buckets, of S3 only. ``in_use``: the store has been used before. A
    missing bucket for its metadata is then an error, because an empty new one would look like an
    empty tier.
    Blocks; raises StoreUnavailable.
    """
    match config:
        case FilesystemConfig():
            return  # never made here: a file system that is not mounted must not look empty
        case S3Config():
            ensure_buckets(config, create=create, in_use=in_use)
        case GcsConfig() | AzureConfig():
            for store in _bucket_stores(config).values():
                store.probe()
        case _:
            assert_never(config)


def _bucket_stores(config: GcsConfig | AzureConfig) -> dict[str, BucketStore]:
    if isinstance(config, GcsConfig):
        return {name: gcs_store(config, name) for name in config.buckets}
    return {name: azure_store(config, name) for name in config.containers}


def _options() -> list[tuple[str, str]]:
    return [kind.option for kind in KINDS.values()]


def _section(sections: object) -> tuple[str, Mapping[str, object]]:
    """Return the one kind, and its fields."""
    if (
        not isinstance(sections, Mapping)
        or len(sections) != 1
        or not sections.keys() <= KINDS.keys()
    ):
        raise InvalidConfig(f"remoteStorage: give either {' or '.join(KINDS)}")
    ((kind, fields),) = sections.items()
    if not isinstance(fields, Mapping):
        raise InvalidConfig(f"remoteStorage: {kind} must be an object")
    return kind, fields
