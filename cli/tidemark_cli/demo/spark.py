"""Spark in parallel to the other steps of the demo, as a JVM takes long to start.

One thread installs missing packages, opens the session and runs the job. The demo requests the
result before a step would change what Spark reads.
"""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

from tidemark_cli.records.flights import Delay
from tidemark_devcluster.toolchain.packages import ensure_spark
from tidemark_pipeline.java import find_java


class BackgroundSpark:
    """Session that opens in the background.

    ``log`` is the JVM's log file. ``settings`` returns further Spark configuration, and is called
    once Spark is installed.
    """

    def __init__(
        self,
        scratch: Path,
        log: Path,
        say: Callable[[str], None],
        settings: Callable[[], Mapping[str, str]],
    ) -> None:
        self._scratch, self._log, self._say = scratch, log, say
        self._settings = settings
        self._stack = ExitStack()
        self._thread = ThreadPoolExecutor(1, "spark")
        self._session: Future[Any] = self._thread.submit(self._open)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Wait until started work has ended and the session is stopped."""
        self._thread.submit(self._stack.close)
        self._thread.shutdown()

    def delays(self, options: Mapping[str, str]) -> Future[tuple[dict[str, Delay], float]]:
        """Start to aggregate the topic that ``options`` name: delays by carrier, and the seconds it
        took.

        The result raises JavaMissing or ToolchainError if Spark is not available.
        """
        return self._thread.submit(self._aggregate, options)

    def _open(self) -> Any:
        find_java()
        ensure_spark(self._say)
        from tidemark_pipeline.session import local_session

        settings = self._settings()
        return self._stack.enter_context(
            local_session("tidemark demo", log=self._log, short=True, settings=settings)
        )

    def _aggregate(self, options: Mapping[str, str]) -> tuple[dict[str, Delay], float]:
        session = self._session.result()
        started = time.monotonic()
        from tidemark_pipeline.jobs.aggregate import Aggregate, aggregate

        job = Aggregate("carrier", "arr_delay", self._scratch / "delays.parquet")
        rows = aggregate(session, options, job).collect()
        self._thread.submit(self._stack.close)  # in the background: the result does not wait for it
        delays = {r["carrier"]: Delay(r["rows"], r["measured"], int(r["total"] or 0)) for r in rows}
        return delays, time.monotonic() - started
