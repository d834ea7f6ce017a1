"""The reports of jobs, as their pages give them.

Whoever answers there may be anybody: a pod that was given the address since, or a job that means
harm. So nothing is followed or waited for, and no more is read than a report has.
"""

import asyncio
import dataclasses
import time
from collections.abc import Callable

import aiohttp

from tidemark.export_job import REPORT_BYTES_MAX, REPORT_PATH, Report

TIMEOUT_S = 3.0
#: So long the last report stands for one that is not to be had: one that is missed tells nothing.
LAST_S = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    report: Report
    at_s: float


class Reports:
    """Of Exports by their keys, the newest of one run each. ``clock``: monotonic seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._kept: dict[str, _Kept] = {}

    async def ask(self, key: str, number: int, address: str) -> Report | None:
        """What the page of a run's job at ``host:port`` says now, or said a moment ago; None:
        nothing."""
        found = await _fetched(f"http://{address}{REPORT_PATH}")
        if found is not None:
            self._kept[key] = _Kept(number, found, self._clock())
            return found
        kept = self._kept.get(key)
        if kept is None or kept.number != number or self._clock() - kept.at_s > LAST_S:
            return None
        return kept.report

    def forget(self, key: str) -> None:
        """The Export is gone."""
        self._kept.pop(key, None)


async def _fetched(url: str) -> Report | None:
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                return None
            return Report.of_json(await _some(answer))
    except (aiohttp.ClientError, TimeoutError, OSError, ValueError):
        return None


async def _some(answer: aiohttp.ClientResponse) -> bytes:
    """All of it, unless that is more than a report has."""
    data = b""
    async with asyncio.timeout(TIMEOUT_S):
        async for chunk in answer.content.iter_chunked(REPORT_BYTES_MAX):
            data += chunk
            if len(data) > REPORT_BYTES_MAX:
                answer.close()
                break
    return data
