"""Values of an ``Export`` in the core: the object, its job as observed, and its steps."""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import TypeAlias, TypeVar

from tidemark.export_job import JobReport, OptionPlace, Order
from tidemark.reasons import Reason
from tidemark.schedule import Schedule
from tidemark_operator.controller.state.model import Json

K = TypeVar("K")
V = TypeVar("V")

#: (catalog, name) of a table: two Exports must not write the same one.
TableId: TypeAlias = tuple[str, str]
DIGEST_CHARS = 16


class ExportOutcome(enum.StrEnum):
    """Result of a run, as in the status.

    REFUSED: a retry without a change fails again. SUPERSEDED: another job has taken over the table,
    and taking it back would start a fight.
    """

    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REFUSED = "Refused"
    SUPERSEDED = "Superseded"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportRunRecord:
    """Newest run, as in the status.

    ``order`` is a digest of the job's order. ``end_ms`` None: it is in progress and has no
    ``outcome``.
    """

    number: int
    generation: int
    order: str
    start_ms: int
    end_ms: int | None = None
    outcome: ExportOutcome | None = None

    @property
    def under_way(self) -> bool:
        """Return whether the run's job should exist."""
        return self.end_ms is None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportInfo:
    """An ``Export`` object.

    ``schedule`` None: it runs continuously, with a commit every ``interval_ms``. ``maintains``: its
    job maintains the tables. ``failures``
    counts failures in a row without a commit. ``topic_id`` is in Kafka's text form, "" before the
    first run.
    """

    key: str
    uid: str
    generation: int
    created_ms: int
    topic_key: str
    tables: frozenset[TableId]
    schedule: Schedule | None
    interval_ms: int
    suspended: bool
    maintains: bool = False
    run: ExportRunRecord | None = None
    failures: int = 0
    last_failure: str = ""
    topic_id: str = ""
    last_schedule_ms: int | None = None
    last_success_ms: int | None = None
    current_ms: int | None = None
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Return the object's name without its namespace."""
        return self.key.rpartition("/")[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """An environment variable with the value of a key of a Secret.

    ``optional``: without that key there is no variable.
    """

    variable: str
    secret: str
    key: str
    optional: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecretFile:
    """An option that names a file with the content of a key of a Secret."""

    place: OptionPlace
    option: str
    secret: str
    key: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DesiredJob:
    """Desired job: its order, and how it runs.

    ``job`` and ``source`` are copied from the spec. ``changing`` are options that follow the
    cluster's state, such as addresses; a running job is not restarted for them. ``topics``: names
    that a running job reads again from a file, none if it has no such file.
    """

    order: Order
    variables: tuple[SecretVariable, ...] = ()
    files: tuple[SecretFile, ...] = ()
    job: Json = dataclasses.field(default_factory=dict)
    source: Json = dataclasses.field(default_factory=dict)
    changing: frozenset[str] = frozenset()
    topics: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """Return a digest that differs if another job is needed."""
        kept = {name: text for name, text in self.order.source.items() if name not in self.changing}
        plan = self.order.maintenance
        # The last maintenance is a state, for which no job is restarted.
        plan = None if plan is None else dataclasses.replace(plan, since_ms=0)
        order = dataclasses.replace(self.order, source=kept, maintenance=plan).to_json()
        variables = [dataclasses.astuple(variable) for variable in self.variables]
        files = [dataclasses.astuple(file) for file in self.files]
        text = json.dumps([order, variables, files, self.job, self.source], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]

    def ordered(self, paths: Mapping[SecretFile, str], topics_file: str) -> Order:
        """Return the order with the paths of its files. ``topics_file``: that of the topics."""
        order = self.order.put({(file.place, file.option): path for file, path in paths.items()})
        return dataclasses.replace(order, topics_file=topics_file if self.topics else "")


class JobPhase(enum.Enum):
    """State of a run's job. ENDING: it was stopped and still exists."""

    ABSENT = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()
    ENDED = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """A run's job as observed.

    ``report`` is None if there is none. ``why`` is another cause, such as an image that cannot be
    pulled. ``well`` says whether a job that has ended succeeded.
    """

    phase: JobPhase
    report: JobReport | None = None
    why: str = ""
    well: bool = False


ABSENT = JobSeen(phase=JobPhase.ABSENT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Reason why no run can start.

    ``waits``: it may resolve by itself, otherwise a person has to act. ``stops``: a run in progress
    has to end as well.
    """

    reason: Reason
    message: str
    waits: bool = False
    stops: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """Record a new run in the status before its job is created."""

    run: ExportRunRecord
    schedule_ms: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """Create the job of the run in progress."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """Stop the job of the run in progress."""


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """Record the result of the run in the status."""

    outcome: ExportOutcome
    message: str = ""
    report: JobReport | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class NextCheck:
    """Do nothing until ``until_ms``; None: until something changes."""

    until_ms: int | None = None


Step: TypeAlias = Begin | Launch | Stop | End | NextCheck


class Exports:
    """All Exports by key: their claims on tables, and their jobs as last observed.

    The oldest Export owns a table. The API server's clock has whole seconds, so of two of one
    second the name decides.
    """

    def __init__(self) -> None:
        self._known: dict[str, ExportInfo] = {}
        self._by_table: dict[TableId, set[tuple[int, str]]] = {}
        self._by_topic: dict[str, set[str]] = {}
        self._jobs: dict[str, JobSeen] = {}

    def put(self, export: ExportInfo) -> None:
        """Take an Export as it is now."""
        job = self._jobs.get(export.key)
        self.drop(export.key)
        if job is not None:
            self._jobs[export.key] = job
        self._known[export.key] = export
        self._by_topic.setdefault(export.topic_key, set()).add(export.key)
        for table in export.tables:
            self._by_table.setdefault(table, set()).add(_age(export))

    def drop(self, key: str) -> frozenset[str]:
        """Drop a deleted Export; return the keys of others that claim one of its tables."""
        export = self._known.pop(key, None)
        self._jobs.pop(key, None)
        if export is None:
            return frozenset()
        _discard(self._by_topic, export.topic_key, key)
        others: set[str] = set()
        for table in export.tables:
            _discard(self._by_table, table, _age(export))
            others.update(other for _, other in self._by_table.get(table, ()))
        return frozenset(others)

    def holder(self, export: ExportInfo) -> tuple[str, str] | None:
        """Return the oldest Export that claims a table of this one, with the table.

        None if it is this one.
        """
        older = [
            (min(claims), table)
            for table in export.tables
            if (claims := self._by_table.get(table)) and min(claims) < _age(export)
        ]
        if not older:
            return None
        (_, key), (_, name) = min(older)
        return key, name

    def of_topic(self, topic_key: str) -> frozenset[str]:
        """Return the keys of the Exports of a topic."""
        return frozenset(self._by_topic.get(topic_key, ()))

    def observe_job(self, export: ExportInfo, job: JobSeen) -> None:
        """Take the observation of an Export's job."""
        if export.key in self._known:
            self._jobs[export.key] = job

    def all(self) -> Iterator[tuple[ExportInfo, JobSeen]]:
        """Yield all Exports with their jobs as last observed."""
        for key, export in self._known.items():
            yield export, self._jobs.get(key, ABSENT)


def _age(export: ExportInfo) -> tuple[int, str]:
    return export.created_ms, export.key


def _discard(index: dict[K, set[V]], at: K, value: V) -> None:
    values = index.get(at, set())
    values.discard(value)
    if not values:
        index.pop(at, None)
