"""Times: RFC 3339 in manifests and status, seconds milliseconds inside."""

import datetime
from typing import Annotated

from pydantic import AfterValidator, AwareDatetime, PlainSerializer

from tidemark_operator.resources.schema import KubernetesSchema, Rule

_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND = datetime.timedelta(milliseconds=1)


def ms_of_time(time: datetime.datetime) -> int:
    """Return a time with a zone as milliseconds since the epoch, fractions dropped."""
    return (time - _EPOCH) // _MILLISECOND


def time_text(time: datetime.datetime) -> str:
    """Return ``2026-11-21T10:00:00Z``, with milliseconds only if there are any."""
    utc = time.astimezone(datetime.UTC)
    seconds = utc.strftime("%Y-%m-%dT%H:%M:%S")
    millis = utc.microsecond // 1000
    return f"{seconds}.{millis:03d}Z" if millis else f"{seconds}Z"


def _since_the_epoch(time: datetime.datetime) -> datetime.datetime:
    if time < _EPOCH:
        raise ValueError("timestamps before 1970 are not supported")
    return time


#: A time in a manifest or a status, with its zone.
Time = Annotated[AwareDatetime, PlainSerializer(time_text, when_used="json")]
#: Timestamp of a record. Kafka's negative timestamps have other meanings (-1: the log's end).
RecordTime = Annotated[
    Time,
    AfterValidator(_since_the_epoch),
    KubernetesSchema(
        Rule(
            rule="self >= timestamp('1970-01-01T00:00:00Z')",
            message="timestamps before 1970 are not supported",
        )
    ),
]
