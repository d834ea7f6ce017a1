"""Checks of what a Spark command is to read, made before Spark starts.

Spark needs ten seconds to start, and reports a missing topic in forty lines.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, ClassVar

import typer

from tidemark.message_text import closest, did_you_mean
from tidemark.tier.metadata.topics import TopicNotFound
from tidemark.tier.stores.key_ring import KEYS_OPTION
from tidemark_cli.common import fail_on, open_cluster
from tidemark_cli.tier.stores import TierOptions
from tidemark_cli.tier.tables import EXPLAINED, PAIR, pairs
from tidemark_devcluster.tier import read_options
from tidemark_pipeline.read.options import is_kafka_topic, names_brokers

#: Options that name topics.
_NAMING = ("topic", "subscribe")
_NO_TIER = "; or name a tier; or, for a topic of Apache Kafka, add --option engine=kafka"


@dataclass(frozen=True, slots=True)
class SourceOptions(TierOptions):
    """Options that name the source of topics: a tier, brokers, or the local cluster."""

    option: Annotated[list[str] | None, typer.Option(help=f"Option of the data source, {PAIR}")] = (
        None
    )
    bootstrap: Annotated[
        str, typer.Option(help="Brokers, for records that are not in the tier.")
    ] = ""

    def extra(self) -> dict[str, str]:
        """Return further options of the data source; exit if one is not a pair."""
        return pairs(self.option, "--option")

    NAMING: ClassVar[Mapping[str, str]] = {**TierOptions.NAMING, "bootstrap": "bootstrap"}

    def options(self) -> dict[str, str]:
        """Return the data source's options except for the topic.

        They are those of the tier that is named, of the Apache Kafka whose brokers are named, or of
        the local cluster. Raises LookupError, OptionError.
        """
        named = self.named()
        if self.is_local():
            cluster = open_cluster(self.directory, _NO_TIER if "bootstrap" in named else "")
            named = {**read_options(cluster, "-"), **named}
            del named["topic"]
        return {**named, **self.extra()}

    def is_local(self) -> bool:
        """Return whether neither a tier nor an Apache Kafka is named. Raises OptionError.

        Brokers of ours may be: they replace those of the local cluster. So may encryption keys.
        """
        named, extra = self.named(), self.extra()
        if named.keys() - {"bootstrap", KEYS_OPTION}:
            return False
        return not (is_kafka_topic(extra) and (named or names_brokers(extra)))


def list_topic_names(options: Mapping[str, str]) -> set[str]:
    """Return the names of all topics except internal ones; exit if they cannot be listed.

    ``options``: of the data source, without a topic.
    """
    with fail_on(*EXPLAINED):
        return _topic_names(options)


def _topic_names(options: Mapping[str, str]) -> set[str]:
    from tidemark_pipeline.read.topic_source import topic_options
    from tidemark_pipeline.read.topic_survey import Survey

    with Survey(topic_options({**options, "subscribePattern": ".*"})) as survey:
        return survey.topics()


def mentioned_topics(names: Iterable[str], statement: str) -> list[str]:
    """Return the names that occur in the statement in any case; it can read no other topics."""
    lowered = statement.lower()
    return sorted(name for name in names if name.lower() in lowered)


def check_source(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return the options unchanged; exit if the topic that they name cannot be read."""
    from tidemark_pipeline.read.topic_source import topic_options
    from tidemark_pipeline.read.topic_survey import Survey

    with fail_on(*EXPLAINED), Survey(topic_options(options)) as survey:
        try:
            survey.extents(survey.parts())
        except TopicNotFound as error:
            raise TopicNotFound(f"{error}.{_suggestion(options)}") from error
    return options


def _suggestion(options: Mapping[str, str]) -> str:
    """Return which topics may be meant by a name that does not exist, "" if none is similar."""
    named = [text for name in _NAMING for text in options.get(name, "").split(",")]
    try:
        known = _topic_names({n: text for n, text in options.items() if n not in _NAMING})
    except EXPLAINED:
        return ""  # The error about the topic says more.
    missing = [name for name in named if name and name not in known]
    return did_you_mean([text for name in missing[:1] for text in closest(name, sorted(known))])
