"""Successive values of an object's field, from a watch: polling misses short-lived states."""

import contextlib
import subprocess
import threading
from collections.abc import Iterator

from e2e.pods.kubernetes import Kubernetes
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed

FIRST_TIMEOUT_S = 30


@contextlib.contextmanager
def watched(kubernetes: Kubernetes, what: str, path: str) -> Iterator[list[str]]:
    """The values of a field (``.status.state``) of an object (``topics.tidemark.dev/orders``) from
    now on, each once for each change; "" where it is not there. Raises :class:`Failed` where
    nothing is seen."""
    # kubectl prints the field on each event, so a short state is not missed between two polls.
    output = f'jsonpath={{{path}}}{{"\\n"}}'
    words = ("--namespace", NAMESPACE, "get", what, "--watch", "--output", output)
    seen: list[str] = []
    begun = threading.Event()

    def read(lines: Iterator[str]) -> None:
        for line in lines:
            value = line.rstrip("\n")
            if not seen or seen[-1] != value:
                seen.append(value)
            begun.set()

    with subprocess.Popen(kubernetes.command(*words), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=read, args=(process.stdout,))
        reader.start()
        try:
            # The watch has to be open before the caller changes anything.
            if not begun.wait(FIRST_TIMEOUT_S):
                raise Failed(f"{what}: nothing was seen of it within {FIRST_TIMEOUT_S} s")
            yield seen
        finally:
            process.terminate()
            reader.join()
