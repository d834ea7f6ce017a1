"""Interface between the reconciler of Exports and the runner of their jobs.

It is narrow on purpose: create the job of a numbered run, look at it, pass topics to it, end it.
The core decides when (:mod:`tidemark_operator.controller.exports`), also about restarts. Restarts
by a Kubernetes Job and of a process would be two rules, and only one of them could be tested
everywhere.

A running job has a page with its report. Any process may answer there: a pod that got the address
since, or a malicious job. So no redirect is followed, each request has a short timeout, and no more
is read than the size of a report.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable
from typing import Protocol

import aiohttp

from tidemark.export_job import REPORT_PATH, SERVED_BYTES_MAX, JobReport
from tidemark_operator.controller.state.export_values import DesiredJob, JobSeen
from tidemark_operator.pods.export_job import ExportRunIdentity


class JobRefused(Exception):
    """The job cannot be created; the text is the reason, for the Export's conditions."""


class JobRunner(Protocol):
    """Runner of jobs. Methods raise ``KubeError`` if the API server fails."""

    #: Whether jobs are pods, which need an image.
    in_pods: bool

    async def look(self, run: ExportRunIdentity) -> JobSeen:
        """Return the state of a run's job."""

    async def start(self, run: ExportRunIdentity, desired: DesiredJob) -> None:
        """Create the job of this run, unless it exists. Raises :class:`JobRefused`."""

    async def follow(self, run: ExportRunIdentity, desired: DesiredJob) -> None:
        """Pass the present topics of a selector to the run's job, which exists."""

    async def stop(self, run: ExportRunIdentity) -> None:
        """Request the end of the job; do not wait for it."""

    async def forget(self, key: str) -> None:
        """End the jobs of the deleted Export of that key."""


# ------------------------------------------------------------ reports


TIMEOUT_S = 3.0
#: The last report is valid this long without a newer one: a missed query means nothing.
LAST_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class _CachedReport:
    number: int
    report: JobReport
    at_s: float


class Reports:
    """Latest report by Export, of one run each. ``clock`` returns monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, _CachedReport] = {}

    async def ask(self, key: str, number: int, address: str) -> JobReport | None:
        """Return the present or a recent report of a run's job at ``host:port``, None without
        one.
        """
        found = await _fetch(f"http://{address}{REPORT_PATH}")
        if found is not None:
            self._kept[key] = _CachedReport(number, found, self._clock())
            return found
        kept = self._kept.get(key)
        # A report of another run says nothing about this one.
        if kept is None or kept.number != number or self._clock() - kept.at_s > LAST_S:
            return None
        return kept.report

    def forget(self, key: str) -> None:
        """Drop the report of a deleted Export."""
        self._kept.pop(key, None)


async def _fetch(url: str) -> JobReport | None:
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                return None
            return JobReport.of_json(await _read_body(answer))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def _read_body(answer: aiohttp.ClientResponse) -> bytes:
    """Return the body up to the size of a report."""
    data = b""
    async with asyncio.timeout(TIMEOUT_S):
        async for chunk in answer.content.iter_chunked(SERVED_BYTES_MAX):
            data += chunk
            # The rest is not read: it would be too large for a report anyway.
            if len(data) > SERVED_BYTES_MAX:
                answer.close()
                break
    return data
