"""What a Spark command is to read is looked for before Spark starts.

Spark takes ten seconds for that, and tells of a missing topic in forty lines.
"""

from collections.abc import Iterable, Mapping
from pathlib import Path

from tidemark.tier.head import ManifestError
from tidemark.tier.objects import StoreError
from tidemark.tier.open import open_tier
from tidemark.tier.topics import TopicAmbiguous, TopicNotFound
from tidemark_cli.commands.common import fail, open_cluster
from tidemark_cli.local.tier import read_options
from tidemark_pipeline.engines import is_kafkas
from tidemark_pipeline.options import OptionError, names_brokers

#: What keeps from finding out what there is to read.
UNREADABLE = (OptionError, TopicNotFound, TopicAmbiguous, ManifestError, StoreError)
_NO_TIER = "; or name a tier; or, for a topic of any Apache Kafka, say --option engine=kafka"


def source_options(
    given: Mapping[str, str], extra: Mapping[str, str], directory: Path
) -> dict[str, str]:
    """Without a topic: of the tier that is named (options that are empty are not given), or of the
    Apache Kafka whose brokers are, else of the local cluster; with ``extra``. Raises
    LookupError."""
    named = {name: value for name, value in given.items() if value}
    if is_local(given, extra):
        cluster = open_cluster(directory, _NO_TIER if "bootstrap" in named else "")
        named = {**read_options(cluster, "-"), **named}
        del named["topic"]
    return {**named, **extra}


def is_local(given: Mapping[str, str], extra: Mapping[str, str]) -> bool:
    """Is neither a tier named nor an Apache Kafka? Brokers of ours may be, in the place of those of
    the local cluster."""
    named = {name for name, value in given.items() if value}
    if named - {"bootstrap"}:
        return False
    return not (is_kafkas(extra) and (named or names_brokers(extra)))


def topics_there(options: Mapping[str, str]) -> set[str]:
    """The names of all topics but internal ones; ends the command where nobody says. ``options``
    name no topic."""
    from tidemark_pipeline.brokers import Brokers, BrokersUnavailable, Refused
    from tidemark_pipeline.topic_source import topic_options

    whole = {**options, "subscribePattern": ".*"}
    try:
        found = topic_options(whole)
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


def checked(options: Mapping[str, str]) -> Mapping[str, str]:
    """The same options; ends the command where they name nothing that can be read."""
    from tidemark_pipeline.brokers import BrokersUnavailable, Refused
    from tidemark_pipeline.topic_source import topic_options
    from tidemark_pipeline.topic_survey import Survey

    try:
        with Survey(topic_options(options)) as survey:
            survey.extents(survey.parts())
    except (*UNREADABLE, BrokersUnavailable, Refused) as error:
        fail(str(error))
    return options
