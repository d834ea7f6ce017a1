"""Protocol between the operator and the job of an ``Export``: an order, and reports.

The order is JSON in the job's environment. Each secret value is in a variable of its own, which the
order names. The job serves its report at :data:`REPORT_PATH` while it runs, and writes the last one
to a file, which in a pod is its termination message: it therefore needs no permission on the API
server. A report may come from an untrusted process, so it is read with bounds.
"""

import dataclasses
import enum
import json
from collections.abc import Mapping
from typing import Any

from tidemark.configuration.values import INT64_MAX

#: Environment variable that contains the order.
ORDER_VARIABLE = "TIDEMARK_EXPORT"
#: Variables of a pod with executors: :class:`ExecutorOrder`, and fields of the pod.
EXECUTORS_VARIABLE = "TIDEMARK_EXECUTORS"
POD_NAME_VARIABLE = "TIDEMARK_POD_NAME"
POD_ADDRESS_VARIABLE = "TIDEMARK_POD_ADDRESS"
NAMESPACE_VARIABLE = "TIDEMARK_NAMESPACE"
#: Variable with the jars of Spark's Kafka source, separated by commas, for a job beside a local
#: operator. In a pod they are in the image, or in the job's jars.
SOURCE_JARS_VARIABLE = "TIDEMARK_SPARK_KAFKA_JARS"
#: Option of a job for topics of Apache Kafka, and its value. Without it they are Tidemark's.
ENGINE, KAFKA = "engine", "kafka"
#: Option with the name of a user, which messages may show.
USERNAME_OPTION = "kafka.sasl.username"
REPORT_PATH = "/report"
#: Kubernetes' limit of a termination message.
REPORT_BYTES_MAX = 4096
#: Limit of a report that a running job serves: it has more rows of topics.
SERVED_BYTES_MAX = 16_384
MESSAGE_CHARS_MAX = 1024
#: Most topics that a report names, and length of the failure of each.
TOPICS_NAMED_MAX = 20
_FAILURE_CHARS_MAX = 256
_NAME_CHARS_MAX = 255
MAINTENANCE_CHARS_MAX = 256


class OptionPlace(enum.StrEnum):
    """Destination of a secret value in an order: an option of the source, a property of the
    catalog, a field of the table, an option of the schema registry, or a key of Spark's
    configuration.
    """

    SOURCE = "source"
    CATALOG = "catalog"
    TABLE = "table"
    REGISTRY = "registry"
    CONF = "conf"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HiddenOption:
    """Option whose value is in an environment variable.

    ``optional``: the variable may be missing.
    """

    place: OptionPlace
    name: str
    variable: str
    optional: bool = False


class OrderError(ValueError):
    """An order that cannot be read; the message names the problem."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaintenancePlan:
    """Maintenance of the job's tables.

    ``schedule``, ``zone``: as in :meth:`tidemark.schedule.Schedule.of`. ``keep_ms``: age up to
    which versions of a table are kept; None keeps all. ``keep_last``: versions of any age that are
    kept. ``orphans_ms``: age from which files that no version names are deleted; None keeps them.
    ``pause_ms``: time for which a step may keep the export from committing. ``since_ms``: time of
    the last run, or of the Export's creation.
    """

    schedule: str
    zone: str = ""
    compact: bool = True
    keep_ms: int | None = None
    keep_last: int = 1
    orphans_ms: int | None = None
    pause_ms: int
    since_ms: int = 0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """Work of a job.

    ``source``: options of the ``tidemark`` source, among them ``topic``, or ``subscribe`` or
    ``subscribePattern`` for many topics. ``table``: the fields of the table's options
    (``tidemark_pipeline.export.table_options``); for many topics its name is a template.
    ``conf``: Spark's configuration. ``jars``: added to, or used instead of, those of the image.
    ``every_s``: interval of commits of a job that runs until it is stopped; None: export everything
    once. ``maintenance``: None if the job does not maintain its tables. ``topics_file``: path of a
    file that replaces ``subscribe`` while the job runs, "" for none.
    """

    source: Mapping[str, str]
    table: Mapping[str, Any]
    hidden: tuple[HiddenOption, ...] = ()
    conf: Mapping[str, str] = dataclasses.field(default_factory=dict)
    jars: tuple[str, ...] = ()
    every_s: float | None = None
    cores: int = 2
    definition: str = ""
    definition_name: str = ""
    maintenance: MaintenancePlan | None = None
    topics_file: str = ""

    def to_json(self) -> str:
        """Return one line; equal orders give equal lines."""
        fields = dataclasses.asdict(self)
        # Left out, so that an image of an older version can read the order.
        for name in ("maintenance", "topics_file"):
            if not fields[name]:
                del fields[name]
        return json.dumps(fields, sort_keys=True, separators=(",", ":"))

    @classmethod
    def of_json(cls, text: str) -> "Order":
        """Return the order in ``text``. Raises :class:`OrderError`."""
        # Any malformed order gives the same error, whichever step detects it.
        try:
            fields: dict[str, Any] = json.loads(text)
            hidden = tuple(
                HiddenOption(
                    place=OptionPlace(item["place"]),
                    name=item["name"],
                    variable=item["variable"],
                    optional=bool(item.get("optional")),
                )
                for item in fields.pop("hidden", ())
            )
            if "maintenance" in fields:
                fields["maintenance"] = MaintenancePlan(**fields["maintenance"])
            return cls(**{**fields, "hidden": hidden, "jars": tuple(fields.get("jars", ()))})
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise OrderError(f"{ORDER_VARIABLE} is no order of an export: {error!r}") from error

    def revealed(self, environment: Mapping[str, str]) -> "Order":
        """Return the order with its secret values.

        Raises :class:`OrderError` if a variable is not set.
        """
        # Name the first missing variable: a person has to set it.
        for hidden in self.hidden:
            if hidden.variable not in environment and not hidden.optional:
                text = f"{hidden.name} must be in the variable {hidden.variable}: set it"
                raise OrderError(text)
        secrets = {
            (item.place, item.name): environment[item.variable]
            for item in self.hidden
            if item.variable in environment
        }
        return dataclasses.replace(self.put(secrets), hidden=())

    def put(self, values: Mapping[tuple[OptionPlace, str], str]) -> "Order":
        """Return a copy of the order with additional option values, for example secrets.

        ``values``: by place (source, table, catalog, registry or Spark's configuration) and name.
        """
        # Copies, because the order is immutable and its dictionaries are shared.
        parts: dict[OptionPlace, dict[str, Any]] = {
            OptionPlace.SOURCE: dict(self.source),
            OptionPlace.TABLE: dict(self.table),
            OptionPlace.CATALOG: dict(self.table.get("catalog", {})),
            OptionPlace.REGISTRY: dict(self.table.get("registry_options", {})),
            OptionPlace.CONF: dict(self.conf),
        }
        # Catalog and registry are parts of the table's options; an empty part stays absent.
        for (place, name), value in values.items():
            parts[place][name] = value
        within = {
            "catalog": parts[OptionPlace.CATALOG],
            "registry_options": parts[OptionPlace.REGISTRY],
        }
        table = parts[OptionPlace.TABLE] | {name: part for name, part in within.items() if part}
        return dataclasses.replace(
            self, source=parts[OptionPlace.SOURCE], table=table, conf=parts[OptionPlace.CONF]
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExecutorOrder:
    """Executor pods that a job's driver creates.

    ``minimum`` and ``maximum``: number of executors; equal without dynamic allocation.
    ``memory_mib``: of an executor's JVM. ``ports``: of the driver, and of block managers.
    ``pod``: template of an executor's pod, whose container is ``container``.
    """

    image: str
    minimum: int
    maximum: int
    cores: int
    memory_mib: int
    ports: tuple[int, int]
    container: str
    pod: Mapping[str, Any]

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), sort_keys=True, separators=(",", ":"))

    @classmethod
    def of_json(cls, text: str) -> "ExecutorOrder":
        """Return the order in ``text``. Raises :class:`OrderError`."""
        try:
            fields: dict[str, Any] = json.loads(text)
            driver, blocks = fields["ports"]
            return cls(**{**fields, "ports": (int(driver), int(blocks))})
        except (ValueError, TypeError, KeyError) as error:
            raise OrderError(f"{EXECUTORS_VARIABLE} is no order of executors: {error!r}") from error


class ExportJobPhase(enum.StrEnum):
    """Progress of a job.

    REFUSED: a repetition cannot succeed, the message names the remedy. SUPERSEDED: another job has
    taken over the table.
    """

    STARTING = "Starting"
    RUNNING = "Running"
    DONE = "Done"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REFUSED = "Refused"
    SUPERSEDED = "Superseded"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicReport:
    """State of one topic of many. ``lag`` None: unknown. ``failure``: "" if it is exported."""

    topic: str
    table: str
    lag: int | None = None
    failure: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TopicsReport:
    """State of the topics of a job that exports many.

    ``total``: topics. ``failing``: topics that are not exported. ``behind``: topics of which the
    table lacks records. ``worst``: failing topics, then those with the largest lag.
    """

    total: int
    failing: int = 0
    behind: int = 0
    worst: tuple[TopicReport, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MaintenanceReport:
    """Maintenance of a job's tables. Times are Unix time in milliseconds.

    ``step``: the step in progress, "" between runs. ``started_ms``: start of the newest run.
    ``next_ms``: start of the next one. ``failures``: tables whose maintenance failed in the last
    run, with the first error in ``message``. The other figures are of the last run:
    ``compacted`` files were rewritten to ``into`` files, and ``expired`` versions, ``removed``
    files and ``orphans`` were deleted.
    """

    step: str = ""
    message: str = ""
    started_ms: int | None = None
    ended_ms: int | None = None
    next_ms: int | None = None
    failures: int = 0
    compacted: int = 0
    into: int = 0
    expired: int = 0
    removed: int = 0
    orphans: int = 0

    @classmethod
    def of(cls, fields: Mapping[str, Any]) -> "MaintenanceReport | None":
        """Parse the report's fields; return None if one is invalid."""
        texts = [fields.get(name, "") for name in ("step", "message")]
        figures = {name: fields.get(name) for name in _MAINTENANCE_FIGURES}
        if not all(isinstance(text, str) for text in texts):
            return None
        if not all(_is_figure(name, value) for name, value in figures.items()):
            return None
        step, message = (shortened(_printable(text), MAINTENANCE_CHARS_MAX) for text in texts)
        known = {name: value for name, value in figures.items() if value is not None}
        return cls(step=step, message=message, **known)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobReport:
    """State of a job; None where it is not known.

    ``lag``: offsets of the topic that the table does not have. ``rows``, ``letters``: rows of the
    table, and of the table of dead letters. ``commits``: number of this job's commits, the last at
    ``committed_ms``. ``current_ms``: the table has everything that the topic had at this time.
    ``observed_ms``: the job queried the topic's end, to which ``lag`` and ``lag_ms`` refer.
    ``lag_ms``: time from ``current_ms`` to that query. ``exported``: offsets from the topic's
    log start, when the job started, to the table's position. Times are Unix time in milliseconds.
    ``cpu_ms``: CPU time of the job's processes. ``written_bytes``: data files in its commits.
    ``topics``: of a job that exports many topics, whose figures are sums.
    ``maintenance``: None if the job does none.
    """

    phase: ExportJobPhase
    message: str = ""
    lag: int | None = None
    rows: int | None = None
    letters: int | None = None
    commits: int = 0
    committed_ms: int | None = None
    current_ms: int | None = None
    observed_ms: int | None = None
    lag_ms: int | None = None
    exported: int | None = None
    cpu_ms: int | None = None
    written_bytes: int | None = None
    topics: TopicsReport | None = None
    maintenance: MaintenanceReport | None = None

    def to_json(self, most_bytes: int = REPORT_BYTES_MAX) -> bytes:
        """Return the report as at most ``most_bytes`` bytes of JSON."""
        fields, chars = dataclasses.asdict(self), MESSAGE_CHARS_MAX
        # Rows of topics are left out from the end, then texts are shortened, until it fits.
        rows = [] if self.topics is None else [_row(topic) for topic in self.topics.worst]
        while True:
            if self.topics is not None:
                fields["topics"]["worst"] = rows
            if self.maintenance is not None:
                for name in ("step", "message"):
                    text = _printable(getattr(self.maintenance, name))
                    limit = min(chars, MAINTENANCE_CHARS_MAX)
                    fields["maintenance"][name] = shortened(text, limit)
            text = json.dumps(fields | {"message": shortened(_printable(self.message), chars)})
            if len(text) <= most_bytes:
                return text.encode()
            if rows:
                rows = rows[: len(rows) // 2]
            else:
                chars //= 2  # escapes take up to twelve bytes a character

    @classmethod
    def of_json(cls, data: bytes | str) -> "JobReport | None":
        """Parse the report that a job has served or written; return None if it is not a report."""
        # The process of the job may be compromised: bound the parsed size, and check each field.
        if len(data) > SERVED_BYTES_MAX:
            return None
        try:
            fields: Any = json.loads(data)
            phase, message = ExportJobPhase(fields["phase"]), fields["message"]
            # Figures that are missing or null are not known.
            figures = {name: fields.get(name) for name in _FIGURES}
            topics = _topics_of(fields.get("topics"))
            upkeep = fields.get("maintenance")
            maintenance = None if upkeep is None else MaintenanceReport.of(upkeep)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            return None
        if not isinstance(message, str) or (upkeep is not None and maintenance is None):
            return None
        if not all(_is_figure(name, value) for name, value in figures.items()):
            return None
        # A job that has not committed yet may leave the field out.
        figures["commits"] = figures["commits"] or 0
        return cls(
            phase=phase,
            message=shortened(_printable(message)),
            topics=topics,
            maintenance=maintenance,
            **figures,
        )


_FIGURES = (
    *("lag", "rows", "letters", "commits", "committed_ms", "current_ms", "observed_ms", "lag_ms"),
    *("exported", "cpu_ms", "written_bytes"),
)
_MAINTENANCE_FIGURES = (
    *("started_ms", "ended_ms", "next_ms", "failures"),
    *("compacted", "into", "expired", "removed", "orphans"),
)


def _row(topic: TopicReport) -> dict[str, Any]:
    failure = shortened(_printable(topic.failure), _FAILURE_CHARS_MAX)
    return dataclasses.asdict(topic) | {"failure": failure}


def _topics_of(fields: Any) -> TopicsReport | None:
    """Return the part of a report about topics. Raises what another form raises."""
    if fields is None:
        return None
    counts = {name: _count(fields[name]) for name in ("total", "failing", "behind")}
    rows = [
        TopicReport(
            topic=_text(row["topic"], _NAME_CHARS_MAX),
            table=_text(row["table"], _NAME_CHARS_MAX),
            lag=None if row["lag"] is None else _count(row["lag"]),
            failure=_text(row["failure"], _FAILURE_CHARS_MAX),
        )
        for row in fields["worst"][:TOPICS_NAMED_MAX]
    ]
    return TopicsReport(**counts, worst=tuple(rows))


def _count(value: object) -> int:
    if value is None or not _is_figure("", value):
        raise ValueError(f"{value!r} is no count")
    assert isinstance(value, int)
    return value


def _text(value: object, most: int) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return shortened(_printable(value), most)


#: The end of the year 9999, which no date goes beyond.
_TIME_MS_MAX = 253_402_300_799_999


def _is_figure(name: str, value: object) -> bool:
    most = _TIME_MS_MAX if name.endswith("_ms") else INT64_MAX
    return value is None or (type(value) is int and 0 <= value <= most)


def _printable(text: str) -> str:
    return "".join(char if char.isprintable() else " " for char in text)


def shortened(text: str, most: int = MESSAGE_CHARS_MAX) -> str:
    """Return the text, shortened to at most ``most`` characters."""
    return text if len(text) <= most else f"{text[: most - 3]}..."
