"""Azure Blob Storage as remote store: its configuration."""

import base64
import binascii
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
    required_text,
)
from tidemark.tier.stores.endpoint import S3Endpoint, parse_endpoint, require_own_identity_host
from tidemark.tier.stores.key_ring import EncryptableStorage

#: Hosts that may receive a token of the machine's own identity: Azure's clouds.
_OWN_HOSTS = (
    ".blob.core.windows.net",
    ".blob.core.usgovcloudapi.net",
    ".blob.core.chinacloudapi.cn",
    ".blob.storage.azure.net",
)
#: Azure, "Storage account names" and "Naming and referencing containers, blobs, and metadata".
_ACCOUNT = re.compile("[a-z0-9]{3,24}")
_CONTAINER = re.compile("[a-z0-9](-?[a-z0-9])+")
#: Where a job finds its credential when its options have none.
_VARIABLES = ("AZURE_STORAGE_ACCOUNT_KEY", "AZURE_STORAGE_SAS_TOKEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureConfig(EncryptableStorage):
    """Containers of a storage account as remote store.

    ``endpoint`` empty: the account in Azure's public cloud. ``containers``: the first one has all
    metadata, segments are in all of them. ``prefix``: folder of all objects, empty for none.
    ``credential``: key of the account or shared access signature, empty for the identity of the
    workload or of the machine.
    """

    kind: ClassVar[str] = "azure"
    location_names: ClassVar[tuple[str, ...]] = ("account", "endpoint", "containers", "prefix")
    credential_names: ClassVar[tuple[str, ...]] = ("credential",)
    setting_names: ClassVar[tuple[str, ...]] = ()
    instruction_names: ClassVar[tuple[str, ...]] = ()
    option: ClassVar[tuple[str, str]] = ("storage=azure", "Azure Blob Storage")

    account: str
    containers: tuple[str, ...]
    credential: str = field(default="", repr=False)
    endpoint: str = ""
    prefix: str = ""

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> Self:
        """Parse the fields of the configuration. Raises InvalidConfig."""
        # The account becomes part of a host name or of a path.
        account = required_text(fields, cls.kind, "account")
        if not _ACCOUNT.fullmatch(account):
            raise InvalidConfig(
                f"remoteStorage: azure.account: {account!r} is no name of a storage account: "
                "3 to 24 lower-case letters and digits"
            )
        endpoint = optional_text(fields, cls.kind, "endpoint", "")
        credential = optional_text(fields, cls.kind, "credential", "")
        if credential and not _is_account_key(credential) and "sig=" not in credential:
            raise InvalidConfig(
                "remoteStorage: azure.credential must be the key of the account, in base64, or a "
                "shared access signature (sv=...&sig=...)"
            )
        # A token of the machine's own identity must not reach another server.
        if endpoint and not credential:
            require_own_identity_host(parse_endpoint(endpoint, cls.kind), cls.kind, _OWN_HOSTS)
        config = cls(
            account=account,
            containers=place_names(
                fields,
                cls.kind,
                "containers",
                place="container",
                is_allowed=lambda name: bool(_CONTAINER.fullmatch(name)) and 3 <= len(name) <= 63,
                allowed="3 to 63 lower-case letters, digits and single hyphens",
            ),
            credential=credential,
            endpoint=endpoint,
            prefix=prefix_text(fields, cls.kind),
        )
        # Parsed once, so that an invalid address is refused here.
        config.endpoints()
        return config

    @classmethod
    def from_options(cls, given: Mapping[str, str], environment: Mapping[str, str]) -> Self:
        """Parse the options of a job.

        ``given``: options by name; containers are separated by commas. A credential that is not
        given is read from the ``environment``. Raises InvalidConfig.
        """
        if not given.get("account") or not given.get("containers"):
            raise InvalidConfig(
                "the option 'account' or 'containers' is missing: name the storage account and the "
                "containers of the tier"
            )
        found = [given.get("credential"), *(environment.get(name) for name in _VARIABLES)]
        credential = next((text for text in found if text), "")
        containers = given["containers"].split(",")
        return cls.parse({**given, "credential": credential, "containers": containers})

    @property
    def has_account_key(self) -> bool:
        """Whether the credential is the key of the account; otherwise it is a signature."""
        return _is_account_key(self.credential)

    @property
    def address(self) -> str:
        """Address of the account.

        A host that begins with the account's name serves that account. Any other one, such as an
        emulator, has the account in the path.
        """
        if not self.endpoint:
            return f"https://{self.account}.blob.core.windows.net"
        address = self.endpoint.rstrip("/")
        (endpoint,) = self.endpoints()
        return (
            address if endpoint.host.startswith(f"{self.account}.") else f"{address}/{self.account}"
        )

    def endpoints(self) -> tuple[S3Endpoint, ...]:
        """Return the configured addresses."""
        return (parse_endpoint(self.endpoint, self.kind),) if self.endpoint else ()

    def fields(self) -> dict[str, object]:
        """Return the fields that ``parse`` reads, the secret included."""
        return {
            "account": self.account,
            "endpoint": self.endpoint,
            "containers": list(self.containers),
            "prefix": self.prefix,
            "credential": self.credential,
        }

    @staticmethod
    def moved(old: Mapping[str, object], new: Mapping[str, object]) -> str:
        """Return why the location ``new`` is another store than ``old``, "" if it is the same."""
        same = ("account", "endpoint", "prefix")
        return moved_places("azure", old, new, same=same, places="containers", place="container")


def _is_account_key(credential: str) -> bool:
    """Return whether a credential is base64, which no shared access signature is."""
    try:
        return bool(base64.b64decode(credential, validate=True))
    except (binascii.Error, ValueError):
        return False
