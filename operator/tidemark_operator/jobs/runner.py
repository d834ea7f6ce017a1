"""What reconciling an Export needs of whatever runs its jobs.

Narrow on purpose: make the job of a numbered run, look at it, have it ended. When that is done is
decided elsewhere (:mod:`tidemark_operator.controller.exports`), and so are restarts: those of a
Kubernetes Job and of a process would be two rules of which only one could be tested everywhere.
"""

import dataclasses
from typing import Protocol

from tidemark_operator.controller.export_values import JobSeen, JobWanted
from tidemark_operator.pods.export_job import ExportRunIdentity


@dataclasses.dataclass(frozen=True, slots=True)
class JobRefused(Exception):
    """A job that cannot be made, for a reason that a person has to mend; ``said``: which."""

    said: str

    def __str__(self) -> str:
        return self.said


class JobRunner(Protocol):
    """Raises ``KubeError`` where the API server fails."""

    #: Whether a job needs an image.
    in_pods: bool

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        """What there is of the job of a run."""

    async def start(self, run: ExportRunIdentity, wanted: JobWanted) -> None:
        """There is a job of this run; one that is there is left as it is. Raises
        :class:`JobRefused`."""

    async def stop(self, run: ExportRunIdentity) -> None:
        """The job is asked to end, and this returns."""

    async def forget(self, key: str) -> None:
        """The Export of that key is gone: so are its jobs, soon."""
