"""What a Spark command is to read is looked for before Spark starts.

Spark takes ten seconds for that, and tells of a missing topic in forty lines.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from tidemark.tier.head import ManifestError
from tidemark.tier.objects import StoreError
from tidemark.tier.open import open_tier
from tidemark.tier.topics import TopicAmbiguous, TopicNotFound
from tidemark_cli.commands.common import fail, open_cluster
from tidemark_cli.local.cluster import LocalCluster
from tidemark_pipeline.engines import is_kafkas
from tidemark_pipeline.options import OptionError, Options, parse

#: What keeps from finding out what there is to read.
UNREADABLE = (OptionError, TopicNotFound, TopicAmbiguous, ManifestError, StoreError)


def source_options(
    given: Mapping[str, str],
    directory: Path,
    of_cluster: Callable[[LocalCluster, str], dict[str, str]],
) -> dict[str, str]:
    """Without a topic: of the tier that is named (options that are empty are not given), else what
    ``of_cluster`` says of the local cluster. Raises LookupError."""
    named = {name: value for name, value in given.items() if value}
    if set(named) - {"bootstrap"}:
        return named
    found = {**of_cluster(open_cluster(directory), "-"), **named}
    return {name: value for name, value in found.items() if name != "topic"}


def topics_there(options: Mapping[str, str]) -> set[str]:
    """The names of all topics but internal ones; ends the command where nobody says. ``options``
    name no topic."""
    from tidemark_pipeline.brokers import Brokers, BrokersUnavailable, Refused

    whole = {**options, "subscribePattern": ".*"}
    try:
        found = _parsed(whole)
        if found.access is None:
            assert found.storage is not None
            names = {topic.name for topic in open_tier(found.storage).topics.all()}
            return {name for name in names if not name.startswith("__")}
        with Brokers(found.access) as brokers:
            return {each.name for each in brokers.topics().values() if not each.internal}
    except (*UNREADABLE, BrokersUnavailable, Refused) as error:
        fail(str(error))


def mentioned(names: Iterable[str], statement: str) -> list[str]:
    """Those whose name stands in the statement, in whichever case: it can read no others."""
    said = statement.lower()
    return sorted(name for name in names if name.lower() in said)


def _parsed(options: Mapping[str, str]) -> Options:
    if is_kafkas(options):
        from tidemark_pipeline.spark_kafka import checked as as_kafkas

        return as_kafkas(options)
    return parse(options)


def checked(options: Mapping[str, str]) -> Mapping[str, str]:
    """The same options; ends the command where they name nothing that can be read."""
    from tidemark_pipeline.brokers import BrokersUnavailable, Refused
    from tidemark_pipeline.survey import Survey

    try:
        if is_kafkas(options):
            _check_kafkas(options)
            return options
        with Survey(parse(options)) as survey:
            survey.extents(survey.parts())
    except (*UNREADABLE, BrokersUnavailable, Refused) as error:
        fail(str(error))
    return options


def _check_kafkas(options: Mapping[str, str]) -> None:
    from tidemark_pipeline.brokers import Brokers

    found = _parsed(options)
    assert found.access is not None
    with Brokers(found.access) as brokers:
        there = brokers.topics(found.topics.names)
    missing = [name for name in found.topics.names if name not in there]
    if missing:
        where = ",".join(found.access.bootstrap)
        raise TopicNotFound(f"there is no topic {', '.join(missing)} in Apache Kafka at {where}")
