"""What a Spark command is to read is looked for before Spark starts.

Spark takes ten seconds for that, and tells of a missing topic in forty lines.
"""

from collections.abc import Mapping

from tidemark.tier.head import ManifestError
from tidemark.tier.objects import StoreError
from tidemark.tier.topics import TopicAmbiguous, TopicNotFound
from tidemark_cli.commands.common import fail
from tidemark_pipeline.options import OptionError, parse


def checked(options: Mapping[str, str]) -> Mapping[str, str]:
    """The same options; ends the command where they name nothing that can be read."""
    from tidemark_pipeline.brokers import BrokersUnavailable, Refused
    from tidemark_pipeline.survey import Survey

    try:
        with Survey(parse(options)) as survey:
            survey.extents(survey.parts())
    except (
        *(OptionError, TopicNotFound, TopicAmbiguous, ManifestError),
        *(StoreError, BrokersUnavailable, Refused),
    ) as error:
        fail(str(error))
    return options
