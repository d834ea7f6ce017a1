"""What keeps a topic that a job reads: an option of jobs, which no data source has."""

from collections.abc import Mapping

#: ``tidemark``, also where it is not given, or ``kafka``.
ENGINE, KAFKA = "engine", "kafka"


def is_kafkas(raw: Mapping[str, str]) -> bool:
    """Do the options name a topic of Apache Kafka?"""
    return raw.get(ENGINE, "").lower() == KAFKA
