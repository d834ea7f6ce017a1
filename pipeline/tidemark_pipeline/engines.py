"""Engine of a topic that a job reads: an option of jobs, which no data source has."""

from collections.abc import Mapping

from tidemark_pipeline.options import OptionError

#: The option and its values; without the option it is ``tidemark``.
ENGINE, TIDEMARK, KAFKA = "engine", "tidemark", "kafka"


def is_kafkas(raw: Mapping[str, str]) -> bool:
    """Return whether the options name a topic of Apache Kafka. Raises :class:`OptionError`."""
    # Spark's options are case-insensitive.
    named = next((value for name, value in raw.items() if name.lower() == ENGINE), TIDEMARK)
    if named.lower() not in {TIDEMARK, KAFKA}:
        raise OptionError(f"engine is {named!r}; write {TIDEMARK} or {KAFKA}")
    return named.lower() == KAFKA


def without_engine(raw: Mapping[str, str]) -> dict[str, str]:
    """Return the options without the engine."""
    return {name: value for name, value in raw.items() if name.lower() != ENGINE}
