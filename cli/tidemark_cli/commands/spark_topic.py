"""What a Spark command is to read is looked for before Spark starts.

Spark takes ten seconds for that, and tells of a missing topic in forty lines.
"""

from collections.abc import Mapping

from tidemark.tier.head import ManifestError
from tidemark.tier.objects import StoreError
from tidemark.tier.topics import TopicAmbiguous, TopicNotFound
from tidemark_cli.commands.common import fail
from tidemark_pipeline.engines import is_kafkas
from tidemark_pipeline.options import OptionError, parse


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
    except (
        *(OptionError, TopicNotFound, TopicAmbiguous, ManifestError),
        *(StoreError, BrokersUnavailable, Refused),
    ) as error:
        fail(str(error))
    return options


def _check_kafkas(options: Mapping[str, str]) -> None:
    from tidemark_pipeline.brokers import Brokers
    from tidemark_pipeline.spark_kafka import checked as as_kafkas

    found = as_kafkas(options)
    assert found.access is not None
    with Brokers(found.access) as brokers:
        there = brokers.topics(found.topics.names)
    missing = [name for name in found.topics.names if name not in there]
    if missing:
        where = ",".join(found.access.bootstrap)
        raise TopicNotFound(f"there is no topic {', '.join(missing)} in Apache Kafka at {where}")
