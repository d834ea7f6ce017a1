"""Any S3 as remote store: its configuration."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple, Self
from urllib.parse import urlsplit

from tidemark.tier.stores.aws_signature import AwsCredentials
from tidemark.tier.stores.config_fields import (
    InvalidConfig,
    moved_places,
    optional_text,
    place_names,
    prefix_text,
    required_text,
)
from tidemark.tier.stores.endpoint import S3Endpoint, parse_endpoint
from tidemark.tier.stores.key_ring import EncryptableStorage

#: Region if none is configured: the first one of S3.
REGION = "us-east-1"
#: Amazon S3, "Bucket naming rules".
_BUCKET = re.compile("[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_IPV4 = re.compile(r"\d+(\.\d+){3}")
#: A part of host names.
_REGION_NAME = re.compile("[A-Za-z0-9-]{1,64}")
_ROLE_ARN = re.compile(r"arn:[a-z0-9-]+:iam::[^:\s]*:role/\S{1,512}")
_STORAGE_CLASS = re.compile("[A-Z][A-Z0-9_]{0,63}")
#: Objects in them have to be restored for hours before they can be read.
_ARCHIVES = frozenset({"GLACIER", "DEEP_ARCHIVE"})
PATH, VIRTUAL_HOST = "path", "virtualHost"
SSE_S3, SSE_KMS = "SSE-S3", "SSE-KMS"
#: Where a job finds its keys when its options have none.
_KEY_VARIABLES = {
    "accessKeyId": "AWS_ACCESS_KEY_ID",
    "secretAccessKey": "AWS_SECRET_ACCESS_KEY",
    "sessionToken": "AWS_SESSION_TOKEN",
}


class BucketAddress(NamedTuple):
    """Address of a bucket: scheme and host, and the path below which its objects are."""

    origin: str
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Config(EncryptableStorage):
    """Buckets as remote store.

    ``endpoint`` empty: AWS in ``region``. ``buckets``: the first one has all metadata, segments are
    in all of them. ``prefix``: folder of all objects, empty for none. ``access_key_id`` empty: the
    identity of the process on AWS. ``role_arn``: role that is assumed, empty for none.
    ``encryption`` (with ``kms_key_id``) and ``storage_class`` of segments: empty for the bucket's
    own. ``addressing``: bucket in the path or in the host, empty for the default. ``ca``:
    certificates (PEM) of authorities to trust in addition to the system's.
    """

    kind: ClassVar[str] = "s3"
    location_names: ClassVar[tuple[str, ...]] = ("endpoint", "region", "buckets", "prefix")
    #: The first two are required in a Secret, the last one is optional.
    credential_names: ClassVar[tuple[str, ...]] = tuple(_KEY_VARIABLES)
    setting_names: ClassVar[tuple[str, ...]] = (
        "roleArn",
        "encryption",
        "kmsKeyId",
        "storageClass",
        "addressing",
    )
    #: Certificates of authorities: field with their text, option of a job with their file, and key
    #: of a Secret with them.
    ca_name: ClassVar[str] = "ca"
    ca_option: ClassVar[str] = "caLocation"
    ca_secret_key: ClassVar[str] = "ca.crt"
    instruction_names: ClassVar[tuple[str, ...]] = ("createBuckets",)
    option: ClassVar[tuple[str, str]] = ("endpoint", "S3")

    buckets: tuple[str, ...]
    access_key_id: str = ""
    secret_access_key: str = field(default="", repr=False)
    session_token: str = field(default="", repr=False)
    endpoint: str = ""
    region: str = REGION
    prefix: str = ""
    role_arn: str = ""
    encryption: str = ""
    kms_key_id: str = ""
    storage_class: str = ""
    addressing: str = ""
    ca: str = field(default="", repr=False)

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> Self:
        """Parse the fields of the configuration. Raises InvalidConfig."""
        texts = {
            name: optional_text(fields, cls.kind, name, "")
            for name in (
                "endpoint",
                "region",
                cls.ca_name,
                *cls.credential_names,
                *cls.setting_names,
            )
        }
        if texts["endpoint"]:
            parse_endpoint(texts["endpoint"])
        # Both keys or none are required. Without keys the process's own identity is used.
        if any(texts[name] for name in cls.credential_names):
            for name in cls.credential_names[:2]:
                required_text(fields, cls.kind, name)
        _check_settings(texts)
        return cls(
            buckets=_buckets(fields),
            access_key_id=texts["accessKeyId"],
            secret_access_key=texts["secretAccessKey"],
            session_token=texts["sessionToken"],
            endpoint=texts["endpoint"],
            region=texts["region"] or REGION,
            prefix=prefix_text(fields, cls.kind),
            role_arn=texts["roleArn"],
            encryption=texts["encryption"],
            kms_key_id=texts["kmsKeyId"],
            storage_class=texts["storageClass"],
            addressing=texts["addressing"],
            ca=texts[cls.ca_name],
        )

    @classmethod
    def from_options(cls, given: Mapping[str, str], environment: Mapping[str, str]) -> Self:
        """Parse the options of a Spark job.

        ``given``: options by name; buckets are separated by commas. Keys that are not given are
        read from the ``environment``. Without keys, each process of the job uses its own identity.
        Raises InvalidConfig.
        """
        if not given.get("buckets"):
            raise InvalidConfig("the option 'buckets' is missing: name the buckets of the tier")
        # Options win over the environment. A token belongs to the key id beside it.
        keys = {
            name: given.get(name) or environment.get(variable, "")
            for name, variable in _KEY_VARIABLES.items()
        }
        if given.get("accessKeyId"):
            keys["sessionToken"] = given.get("sessionToken", "")
        ca = _read_ca(given[cls.ca_option]) if given.get(cls.ca_option) else ""
        return cls.parse({**given, **keys, cls.ca_name: ca, "buckets": given["buckets"].split(",")})

    @property
    def keys(self) -> AwsCredentials | None:
        """Configured keys, None for the identity of the process."""
        if not self.access_key_id:
            return None
        return AwsCredentials(self.access_key_id, self.secret_access_key, self.session_token)

    def endpoints(self) -> tuple[S3Endpoint, ...]:
        """Return the addresses that requests are sent to, except AWS's own."""
        if not self.endpoint:
            return ()
        origins = {self.address(bucket).origin: None for bucket in self.buckets}
        return tuple(parse_endpoint(origin) for origin in origins)

    def address(self, bucket: str) -> BucketAddress:
        """Return the address of a bucket.

        By default the bucket is in the path of an ``endpoint``, because a name in the host needs
        DNS for it, and in the host at AWS.
        """
        domain = "amazonaws.com.cn" if self.region.startswith("cn-") else "amazonaws.com"
        parts = urlsplit(self.endpoint or f"https://s3.{self.region}.{domain}")
        addressing = self.addressing or (PATH if self.endpoint else VIRTUAL_HOST)
        if addressing == PATH:
            return BucketAddress(f"{parts.scheme}://{parts.netloc}", f"/{bucket}")
        return BucketAddress(f"{parts.scheme}://{bucket}.{parts.netloc}", "")

    def fields(self) -> dict[str, object]:
        """Return the fields that ``parse`` reads, the secret included."""
        # Unset fields are left out, because a change of the text counts as a change of the store.
        optional = {
            "sessionToken": self.session_token,
            "roleArn": self.role_arn,
            "encryption": self.encryption,
            "kmsKeyId": self.kms_key_id,
            "storageClass": self.storage_class,
            "addressing": self.addressing,
            self.ca_name: self.ca,
        }
        keys = {"accessKeyId": self.access_key_id, "secretAccessKey": self.secret_access_key}
        return {
            "endpoint": self.endpoint,
            "region": self.region,
            "buckets": list(self.buckets),
            "prefix": self.prefix,
            **(keys if self.access_key_id else {}),
            **{name: text for name, text in optional.items() if text},
        }

    @staticmethod
    def moved(old: Mapping[str, object], new: Mapping[str, object]) -> str:
        """Return why the location ``new`` is another store than ``old``, "" if it is the same."""
        same = ("endpoint", "prefix")
        return moved_places("s3", old, new, same=same, places="buckets", place="bucket")


def _read_ca(path: str) -> str:
    """Return the certificates in a file. Raises InvalidConfig."""
    try:
        return Path(path).read_text(encoding="ascii")
    except (OSError, ValueError) as error:
        raise InvalidConfig(f"the certificates in {path} cannot be read: {error}") from error


def _check_settings(texts: Mapping[str, str]) -> None:
    """Check the optional fields that are not names of a place. Raises InvalidConfig."""
    allowed = {
        "region": (_REGION_NAME, "letters, digits and hyphens"),
        "roleArn": (_ROLE_ARN, "the ARN of a role, such as arn:aws:iam::123456789012:role/tier"),
        "storageClass": (_STORAGE_CLASS, "a storage class, such as STANDARD_IA"),
        "encryption": (re.compile(f"{SSE_S3}|{SSE_KMS}"), f"{SSE_S3} or {SSE_KMS}"),
        "addressing": (re.compile(f"{PATH}|{VIRTUAL_HOST}"), f"{PATH} or {VIRTUAL_HOST}"),
    }
    # Each field alone.
    for name, (pattern, what) in allowed.items():
        if texts[name] and not pattern.fullmatch(texts[name]):
            raise InvalidConfig(f"remoteStorage: s3.{name} must be {what}")
    # Then what no pattern can express.
    if texts["storageClass"] in _ARCHIVES:
        raise InvalidConfig(
            f"remoteStorage: s3.storageClass {texts['storageClass']} cannot be read at once; use "
            "GLACIER_IR or another class"
        )
    if texts[S3Config.ca_name] and "-----BEGIN CERTIFICATE-----" not in texts[S3Config.ca_name]:
        raise InvalidConfig("remoteStorage: s3.ca has no certificate in PEM form")
    if texts["kmsKeyId"] and texts["encryption"] != SSE_KMS:
        raise InvalidConfig(f"remoteStorage: s3.kmsKeyId needs s3.encryption {SSE_KMS}")


def _buckets(fields: Mapping[str, object]) -> tuple[str, ...]:
    """Return the names of the buckets. Raises InvalidConfig for names that S3 does not allow."""
    return place_names(
        fields,
        S3Config.kind,
        "buckets",
        place="bucket",
        is_allowed=lambda name: (
            bool(_BUCKET.fullmatch(name)) and ".." not in name and not _IPV4.fullmatch(name)
        ),
        allowed="3 to 63 lower-case letters, digits, dots and hyphens, not an IP address",
    )
