"""A folder that a broker may not write to any more, of a log that is to be compacted."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

from e2e.pods.chapters.alerts.fault import Fault
from e2e.pods.objects import NAMESPACE
from e2e.pods.stage import Stage

TOPIC = "alerts-compacted"
BROKER = "broker-2"
RECORDS = 3000
FOLDER = f"/var/lib/tidemark/log/{TOPIC}-0"


@contextmanager
def _refuses(stage: Stage) -> Iterator[None]:
    """Make the log folder reject new files, for the cleaner and for appends."""
    # The cleaner takes closed segments only, and none before the topic's setting allows it below.
    stage.make_topic(
        TOPIC,
        config={"cleanup.policy": "compact", "segment.bytes": "1048576", **_from("1.0")},
    )
    stage.produce(TOPIC, RECORDS)
    # From here on neither appends nor the cleaner can create files.
    _allow(stage, 0o500)
    try:
        stage.kubernetes.run(
            *("--namespace", NAMESPACE, "patch", "topics.tidemark.dev", TOPIC, "--type=merge"),
            *("--patch", json.dumps({"spec": {"config": _from("0.0")}})),
        )
        stage.produce(TOPIC, RECORDS)
        yield
    finally:
        _allow(stage, 0o700)
    stage.recovered()


def tidy(stage: Stage) -> None:
    """The topic goes once its cleaner has come back to it by itself."""
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", "topics.tidemark.dev", TOPIC)
    del stage.written[TOPIC]


def _from(share: str) -> dict[str, str]:
    """The dirty share of a log from which on it is cleaned."""
    return {"min.cleanable.dirty.ratio": share}


def _allow(stage: Stage, mode: int) -> None:
    program = f"import os; os.chmod({FOLDER!r}, {mode})"
    stage.kubernetes.run(
        *("--namespace", NAMESPACE, "exec", f"{BROKER}-0", "--", "python3", "-c", program)
    )


FAULTS = (
    Fault(
        what="a folder that cannot be written to",
        alerts=("TidemarkCleaningFails", "TidemarkStorageFails"),
        caused=_refuses,
    ),
)
