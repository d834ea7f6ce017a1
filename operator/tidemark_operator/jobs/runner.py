"""Interface between the reconciler of Exports and the runner of their jobs.

It is narrow on purpose: create the job of a numbered run, look at it, end it. Other modules decide
when (:mod:`tidemark_operator.controller.exports`), also about restarts. Restarts by a Kubernetes
Job and of a process would be two rules, and only one of them could be tested everywhere.
"""

import dataclasses
from typing import Protocol

from tidemark_operator.controller.export_values import DesiredJob, JobSeen
from tidemark_operator.pods.export_job import ExportRunIdentity


@dataclasses.dataclass(frozen=True, slots=True)
class JobRefused(Exception):
    """A job cannot be created, for a reason that a person has to fix; ``reason`` is that reason."""

    reason: str

    def __str__(self) -> str:
        return self.reason


class JobRunner(Protocol):
    """Runner of jobs. Methods raise ``KubeError`` if the API server fails."""

    #: Whether jobs are pods, which need an image.
    in_pods: bool

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        """Return the state of a run's job."""

    async def start(self, run: ExportRunIdentity, desired: DesiredJob) -> None:
        """Create the job of this run, unless it exists. Raises :class:`JobRefused`."""

    async def stop(self, run: ExportRunIdentity) -> None:
        """Request the end of the job; do not wait for it."""

    async def forget(self, key: str) -> None:
        """End the jobs of the deleted Export of that key."""
