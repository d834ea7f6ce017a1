"""Where commands on tables find the topics that these are of: a tier that is named, or the local
cluster's."""

from collections.abc import Mapping
from pathlib import Path

from tidemark_cli.commands.common import open_cluster
from tidemark_cli.local.tier import tier_options


def given(**options: str) -> dict[str, str]:
    """Those that are."""
    return {name: value for name, value in options.items() if value}


def is_local(options: Mapping[str, str]) -> bool:
    """Is none named? Brokers may be, in the place of the local cluster's."""
    return not options.keys() - {"bootstrap"}


def source_of(options: Mapping[str, str], directory: Path) -> dict[str, str]:
    """Options of the data source, without a topic. Raises LookupError where the local cluster has
    no tier of ours."""
    if not is_local(options):
        return dict(options)
    local = tier_options(open_cluster(directory), "-")
    del local["topic"]
    return {**local, **options}
