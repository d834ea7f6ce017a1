"""Options that name the tier a command works on; the default is the local cluster's."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import typer

from tidemark.tier.identity import read_identity
from tidemark.tier.metadata.topics import TopicObject
from tidemark.tier.open import Tier, open_tier
from tidemark.tier.stores.config import RemoteStorage, from_options
from tidemark.tier.stores.config_fields import InvalidConfig
from tidemark.tier.stores.key_ring import KEYS_OPTION
from tidemark.tier.stores.objects import ObjectNotFound, StoreError
from tidemark_cli.common import DEFAULT_DIR, DirOption, fail, fail_on, open_cluster
from tidemark_devcluster.tier import storage


class OpenTier(NamedTuple):
    """Open tier with the contents of its identity object."""

    tier: Tier
    config: RemoteStorage
    store_id: str
    cluster_id: str

    def chosen_topics(self, names: Sequence[str] | None) -> list[TopicObject]:
        """Return the named topics, each once; without names all. Raises TopicNotFound and others.

        Errors: TopicNotFound, TopicAmbiguous, ManifestError, StoreError.
        """
        catalog = self.tier.topics
        if not names:
            return list(catalog.all())
        return [catalog.find(name) for name in dict.fromkeys(names)]


@dataclass(frozen=True, slots=True)
class TierOptions:
    """Options that name the tier of a command; the default is the local cluster's."""

    directory: DirOption = DEFAULT_DIR
    path: Annotated[str, typer.Option("--path", help="Directory of the tier, of any cluster.")] = ""
    storage: Annotated[
        str,
        typer.Option(
            "--storage",
            help="Kind of the tier: s3, gcs or azure; not needed with --path or an S3 --endpoint.",
        ),
    ] = ""
    endpoint: Annotated[
        str, typer.Option("--endpoint", help="Endpoint of the tier, such as http://s3:9000.")
    ] = ""
    buckets: Annotated[
        str,
        typer.Option("--buckets", help="Buckets of the tier in their order, separated by commas."),
    ] = ""
    account: Annotated[
        str, typer.Option("--account", help="Storage account of a tier in Azure.")
    ] = ""
    containers: Annotated[
        str,
        typer.Option(
            "--containers",
            help="Containers of a tier in Azure in their order, separated by commas.",
        ),
    ] = ""
    prefix: Annotated[str, typer.Option("--prefix", help="Prefix of the keys.")] = ""
    region: Annotated[str, typer.Option("--region", help="Region of the S3 store.")] = ""
    role_arn: Annotated[
        str, typer.Option("--role-arn", help="Role that is assumed for the S3 store.")
    ] = ""
    addressing: Annotated[
        str,
        typer.Option("--addressing", help="Place of the bucket in URLs: path or virtualHost."),
    ] = ""
    ca: Annotated[
        str, typer.Option("--ca", help="PEM file with the authority of the S3 store.")
    ] = ""
    encryption: Annotated[
        str, typer.Option("--encryption", help="Encryption of what is written: SSE-S3 or SSE-KMS.")
    ] = ""
    kms_key_id: Annotated[
        str, typer.Option("--kms-key-id", help="Key of KMS, with --encryption SSE-KMS.")
    ] = ""
    encryption_keys: Annotated[
        str,
        typer.Option("--encryption-keys", help="File with the keys that encrypt segments."),
    ] = ""

    #: Options that name the tier, with the names that the data source has for them.
    NAMING: ClassVar[Mapping[str, str]] = {
        "path": "path",
        "storage": "storage",
        "endpoint": "endpoint",
        "buckets": "buckets",
        "account": "account",
        "containers": "containers",
        "prefix": "prefix",
        "region": "region",
        "role_arn": "roleArn",
        "addressing": "addressing",
        "ca": "caLocation",
        "encryption": "encryption",
        "kms_key_id": "kmsKeyId",
        "encryption_keys": "encryptionKeysLocation",
    }

    def named(self) -> dict[str, str]:
        """Return the naming options that were given, by the data source's names."""
        found = {name: getattr(self, field) for field, name in self.NAMING.items()}
        return {name: text for name, text in found.items() if text}

    def open(self) -> OpenTier:
        """Open the tier that is named, or that of the local cluster.

        Exits with a hint if there is none. Credentials are those of the process: variables such as
        AWS_ACCESS_KEY_ID, or its identity in the cloud.
        """
        # Without a named tier it is that of the local cluster.
        given = self.named()
        with fail_on(InvalidConfig, LookupError, StoreError):
            config = (
                # Keys alone name no tier: they are those of the local cluster's.
                from_options(given, os.environ)
                if given.keys() - {KEYS_OPTION}
                else storage(open_cluster(self.directory), given)
            )
            tier = open_tier(config)
            # The identity object is in every tier that a broker has used.
            try:
                store_id, cluster_id = read_identity(tier.store)
            except ObjectNotFound as error:
                hint = "no tier is there; check --path, or --storage, --endpoint and --buckets"
                fail(f"{error}: {hint}")
        return OpenTier(tier, config, store_id, cluster_id)
