"""Options of the ``tidemark`` source, parsed once and checked with messages that say what to do.

=====================  ==========================================================================
``topic``              the Kafka name of the topic
``path``               the tier as a directory, or
``endpoint``           the tier as S3, with ``region``, ``buckets`` (comma-separated), ``prefix``;
                       keys come from ``accessKeyId`` and ``secretAccessKey``, or from the
                       environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY)
``bootstrap``          brokers, for the local tail; without it only the tier is read
``startingOffsets``    ``earliest`` (default) or ``{"0": 17, "1": 4}`` by partition
``endingOffsets``      ``latest`` (default) or by partition, exclusive
``failOnDataLoss``     ``true`` (default): rows that expire while the job runs end it
``bytesPerTask``       how many remote bytes one task reads at least (default 64 MiB)
=====================  ==========================================================================
"""

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass

from tidemark.tier.config import OPTIONS as STORAGE_OPTIONS
from tidemark.tier.config import RemoteStorage, from_options
from tidemark.tier.config_fields import InvalidConfig

_KNOWN = {
    name.lower(): name
    for name in (
        *STORAGE_OPTIONS,
        "topic",
        "bootstrap",
        "startingOffsets",
        "endingOffsets",
        "failOnDataLoss",
        "bytesPerTask",
    )
}


class OptionError(ValueError):
    """An option is missing, unknown or has a bad value."""


@dataclass(frozen=True, slots=True)
class Options:
    """Parsed options. Offsets by partition are empty for earliest and latest."""

    topic: str
    storage: RemoteStorage
    bootstrap: tuple[str, ...]
    starting_offsets: dict[int, int]
    ending_offsets: dict[int, int]
    fail_on_data_loss: bool
    task_bytes: int


def parse(raw: Mapping[str, str]) -> Options:
    """Read the options as Spark hands them over (names in any case)."""
    given: dict[str, str] = {}
    for key, value in raw.items():
        name = _KNOWN.get(key.lower())
        if name is None:
            raise OptionError(
                f"unknown option {key!r}; known: {', '.join(sorted(_KNOWN.values()))}"
            )
        given[name] = value
    if not given.get("topic"):
        raise OptionError("the option 'topic' is missing: name the topic to read")
    return Options(
        topic=given["topic"],
        storage=_storage(given),
        bootstrap=tuple(a for a in given.get("bootstrap", "").split(",") if a),
        starting_offsets=_offsets(given, "startingOffsets", "earliest"),
        ending_offsets=_offsets(given, "endingOffsets", "latest"),
        fail_on_data_loss=_boolean(given, "failOnDataLoss", default=True),
        task_bytes=_positive(given, "bytesPerTask", default=64 * 1024 * 1024),
    )


def _storage(given: Mapping[str, str]) -> RemoteStorage:
    try:
        return from_options(given, os.environ)
    except InvalidConfig as error:
        raise OptionError(str(error)) from error


def _offsets(given: Mapping[str, str], name: str, word: str) -> dict[int, int]:
    value = given.get(name, word)
    if value == word:
        return {}
    problem = f'{name} is {value!r}; write {word} or offsets by partition, e.g. {{"0": 17}}'
    try:
        parsed = json.loads(value)
        return {int(partition): int(offset) for partition, offset in parsed.items()}
    except (ValueError, AttributeError, TypeError) as error:
        raise OptionError(problem) from error


def _boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = given.get(name, str(default)).lower()
    if value not in {"true", "false"}:
        raise OptionError(f"{name} is {value!r}; write true or false")
    return value == "true"


def _positive(given: Mapping[str, str], name: str, *, default: int) -> int:
    value = given.get(name, str(default))
    if not value.isdecimal() or int(value) < 1:
        raise OptionError(f"{name} is {value!r}; write a whole number of bytes above zero")
    return int(value)
