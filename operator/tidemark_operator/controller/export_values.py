"""What an ``Export`` is to the core, what is seen of its job, and the steps that keep it going."""

import dataclasses
import enum
import hashlib
import json
from collections.abc import Mapping
from typing import TypeAlias

from tidemark.export_job import Order, Place, Report
from tidemark.reasons import Reason
from tidemark_operator.controller.export_schedule import Schedule
from tidemark_operator.controller.model import Json

#: (catalog, name) of a table: two Exports that have one in common would take it from each other.
TableId: TypeAlias = tuple[str, str]
DIGEST_CHARS = 16


class Outcome(enum.StrEnum):
    """How a run ended, as the status has it. REFUSED: trying again mends nothing by itself.
    SUPERSEDED: another job has taken the table over; whoever takes it back fights with that."""

    SUCCEEDED = "Succeeded"
    STOPPED = "Stopped"
    FAILED = "Failed"
    REFUSED = "Refused"
    SUPERSEDED = "Superseded"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The newest run, as the status remembers it. ``order``: a digest of what the job was told;
    ``end_ms`` None: it is under way, and ``outcome`` unknown."""

    number: int
    generation: int
    order: str
    start_ms: int
    end_ms: int | None = None
    outcome: Outcome | None = None

    @property
    def under_way(self) -> bool:
        """Whether a job is to be there."""
        return self.end_ms is None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ExportInfo:
    """An ``Export`` object. ``schedule`` None: it runs all the time, a commit every
    ``interval_ms``. ``failures``: in a row, without a commit. ``topic_id``: Kafka's text, "" before
    the first run."""

    key: str
    uid: str
    generation: int
    created_ms: int
    topic_key: str
    tables: frozenset[TableId]
    schedule: Schedule | None
    interval_ms: int
    suspended: bool
    run: Run | None = None
    failures: int = 0
    last_failure: str = ""
    topic_id: str = ""
    last_schedule_ms: int | None = None
    last_success_ms: int | None = None
    current_ms: int | None = None
    status: Json = dataclasses.field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the object."""
        return self.key.rpartition("/")[2]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecretVariable:
    """An environment variable whose value is that of a key of a Secret."""

    variable: str
    secret: str
    key: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SecretFile:
    """An option that names a file: that of a key of a Secret."""

    place: Place
    option: str
    secret: str
    key: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobWanted:
    """What a job is told, and how it runs: ``job`` and ``source`` are those of the spec as they
    stand. ``changing``: options that follow the cluster's life, for which no job that runs is begun
    anew."""

    order: Order
    variables: tuple[SecretVariable, ...] = ()
    files: tuple[SecretFile, ...] = ()
    job: Json = dataclasses.field(default_factory=dict)
    source: Json = dataclasses.field(default_factory=dict)
    changing: frozenset[str] = frozenset()

    @property
    def digest(self) -> str:
        """Another one where another job is wanted."""
        kept = {name: text for name, text in self.order.source.items() if name not in self.changing}
        told = dataclasses.replace(self.order, source=kept).to_json()
        variables = [dataclasses.astuple(each) for each in self.variables]
        files = [dataclasses.astuple(each) for each in self.files]
        text = json.dumps([told, variables, files, self.job, self.source], sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:DIGEST_CHARS]

    def ordered(self, paths: Mapping[SecretFile, str]) -> Order:
        """The order, with where its files are."""
        return self.order.put({(each.place, each.option): path for each, path in paths.items()})


class JobPhase(enum.Enum):
    """What there is of a run's job. ENDING: it was asked to end, and is not gone."""

    ABSENT = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    ENDING = enum.auto()
    ENDED = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class JobSeen:
    """``report`` None: none was to be had. ``why``: what else is said of it, as by a node that
    cannot fetch the image; ``well``: of one that has ended."""

    phase: JobPhase
    report: Report | None = None
    why: str = ""
    well: bool = False


ABSENT = JobSeen(phase=JobPhase.ABSENT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Why no run can begin. ``waits``: it may pass by itself; else a person is asked. ``stops``: a
    run that is under way has to end, too."""

    reason: Reason
    message: str
    waits: bool = False
    stops: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Begin:
    """The status says that this run is under way, before there is a job."""

    run: Run
    schedule_ms: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """The job of the run that is under way is to be there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Stop:
    """The job is to end."""


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """The status says how the run ended."""

    outcome: Outcome
    message: str = ""
    report: Report | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Rest:
    """Nothing is to be done; ``until_ms``: when something is, None: when something changes."""

    until_ms: int | None = None


Step: TypeAlias = Begin | Launch | Stop | End | Rest
