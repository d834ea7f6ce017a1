"""Options that name the tier a command works on; the default is the local cluster's."""

import os
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from tidemark.tier.config import RemoteStorage, from_options
from tidemark.tier.config_fields import InvalidConfig
from tidemark.tier.identity import read_identity
from tidemark.tier.objects import ObjectNotFound, StoreError
from tidemark.tier.open import Tier, open_tier
from tidemark_cli.common import fail, open_cluster
from tidemark_devcluster.tier import storage

PathOption = Annotated[str, typer.Option("--path", help="Directory of the tier, of any cluster.")]
EndpointOption = Annotated[
    str, typer.Option("--endpoint", help="S3 endpoint of the tier, such as http://s3:9000.")
]
BucketsOption = Annotated[
    str, typer.Option("--buckets", help="Buckets of the tier in their order, separated by commas.")
]
PrefixOption = Annotated[str, typer.Option("--prefix", help="Prefix of the keys.")]
RegionOption = Annotated[str, typer.Option("--region", help="Region of the S3 store.")]


def named_store(path: str, endpoint: str, buckets: str, prefix: str, region: str) -> dict[str, str]:
    """Return the options that were given, under the names that the data source uses."""
    given = {
        "path": path,
        "endpoint": endpoint,
        "buckets": buckets,
        "prefix": prefix,
        "region": region,
    }
    return {name: value for name, value in given.items() if value}


class OpenTier(NamedTuple):
    """Open tier with the contents of its identity object."""

    tier: Tier
    config: RemoteStorage
    store_id: str
    cluster_id: str


def open_named(given: dict[str, str], directory: Path) -> OpenTier:
    """Open the tier of a named store (:func:`named_store`) or of the local cluster.

    Exits with a hint if there is none. S3 keys are read from AWS_ACCESS_KEY_ID and
    AWS_SECRET_ACCESS_KEY.
    """
    try:
        config = from_options(given, os.environ) if given else storage(open_cluster(directory))
        tier = open_tier(config)
        store_id, cluster_id = read_identity(tier.store)
    except (InvalidConfig, LookupError) as error:
        fail(str(error))
    except ObjectNotFound as error:
        fail(f"{error}: no tier is there; check --path, or --endpoint, --buckets and --prefix")
    except StoreError as error:
        fail(str(error))
    return OpenTier(tier, config, store_id, cluster_id)
