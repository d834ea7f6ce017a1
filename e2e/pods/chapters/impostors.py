"""A pod that the network policies let through still has to prove that it is a broker.

The impostor is a pod that carries a broker's labels, as the policies require, and runs the broker's
own code. It shows no certificate; or one with the right name, signed by an authority of its own; or
the real one of broker 2, while it claims to be broker 3. As broker 2 it is accepted, which proves
that the other refusals have the stated cause.
"""

import datetime as dt
import functools
import time
from base64 import b64decode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.pods import objects
from e2e.pods.chapters.chapter import Chapter, Step
from e2e.pods.kubernetes import condition
from e2e.pods.objects import NAMESPACE
from e2e.pods.progress import Failed
from e2e.pods.stage import Stage
from tidemark.tls.identity import TlsIdentity
from tidemark_operator.certificates.authority import issue, make_authority
from tidemark_operator.certificates.stored_authority import leaf_data

PROGRAM = Path(__file__).parents[1] / "impostor_program.py"
IMPOSTOR = (NAMESPACE, "impostor")
ASKED, STOLEN, CLAIMED = 1, 2, 3
NOTHING, FORGED, REAL = "", f"/secrets/forged-{STOLEN}", f"/secrets/broker-{STOLEN}"
#: A listener has a line about strangers once in ten seconds, and counts those between.
QUIET_S = 11


@dataclass(frozen=True, slots=True)
class _Door:
    """A private listener of a pod; ``node``: of which broker, -1 for an operator's."""

    listener: str
    pod: str
    node: int


def _doors(stage: Stage) -> tuple[_Door, ...]:
    return _Door("control", stage.leading_pod(), -1), _Door(
        "replication", f"broker-{ASKED}-0", ASKED
    )


def _comes(stage: Stage) -> None:
    now = dt.datetime.now(dt.UTC)
    # The forged leaf has the right names. Only its authority differs.
    kept = stage.kubernetes.get(NAMESPACE, "secret", f"broker-{STOLEN}-tls")["data"]
    forged = issue(
        make_authority(_cluster_id(stage), now), TlsIdentity(_cluster_id(stage), STOLEN), now
    )
    stage.kubernetes.apply(
        objects.secret("forged", leaf_data(forged, b64decode(kept["ca.crt"]))),
        objects.impostor(IMPOSTOR[1], {FORGED: "forged", REAL: f"broker-{STOLEN}-tls"}),
    )
    stage.wait("the impostor's container", lambda: _not_started(stage))
    # The same program with the real certificate is accepted, so refusals below are due to the
    # certificate.
    for door in _doors(stage):
        said = _try(stage, door, STOLEN, REAL)
        if not said.startswith("answered"):
            raise Failed(f"broker {STOLEN}'s own certificate at {door}: {said}")


def _not_started(stage: Stage) -> str:
    state = stage.container(IMPOSTOR[1])["state"]
    return "" if "running" in state else str(state)


def _cluster_id(stage: Stage) -> str:
    body = stage.kubernetes.get(NAMESPACE, "clusters.tidemark.dev", "tidemark")
    return str(body["status"]["clusterId"])


def _try(stage: Stage, door: _Door, claimed: int, folder: str) -> str:
    address = stage.ports(door.pod)[door.listener]
    who = (str(door.node), str(claimed), folder)
    return stage.python(IMPOSTOR, PROGRAM, door.listener, address, _cluster_id(stage), *who)


def _without_certificate(stage: Stage) -> None:
    _refused(stage, NOTHING, "closed a connection")


def _of_another_authority(stage: Stage) -> None:
    _refused(stage, FORGED, "closed a connection")


def _as_another(stage: Stage) -> None:
    _refused(stage, REAL, f"broker {STOLEN} of cluster {_cluster_id(stage)}")


def _refused(stage: Stage, folder: str, words: str) -> None:
    """Check that every listener refuses the impostor with one log line, and that brokers are
    unaffected.
    """
    # Lines about refused connections are throttled, so the previous one has to be over.
    time.sleep(QUIET_S)
    before = _brokers(stage)
    for door in _doors(stage):
        lines = _lines(stage, door)
        said = _try(stage, door, CLAIMED, folder)
        if not said.startswith("refused"):
            raise Failed(f"at {door}: {said}")
        # Exactly one line, with the reason and the impostor's address.
        stage.wait("a line about it", functools.partial(_no_line, stage, door, lines))
        told = _lines(stage, door)[len(lines) :]
        if len(told) != 1 or words not in told[0]:
            raise Failed(f"{door.pod} tells of it: {told}")
    if _brokers(stage) != before:
        raise Failed(f"the brokers were {before}, and are {_brokers(stage)}")


def _lines(stage: Stage, door: _Door) -> list[str]:
    """Return the log lines of a pod that contain the impostor's address."""
    address = stage.pod(IMPOSTOR[1])["status"]["podIP"]
    log = stage.kubernetes.log(NAMESPACE, door.pod)
    return [line for line in log.splitlines() if address in line]


def _no_line(stage: Stage, door: _Door, before: list[str]) -> str:
    return "" if len(_lines(stage, door)) > len(before) else f"{door.pod} says nothing of it"


def _brokers(stage: Stage) -> dict[str, Any]:
    """Return the fields that change if a broker is fenced, registered again or restarted."""
    found = {}
    for body in stage.kubernetes.all(NAMESPACE, "brokers.tidemark.dev"):
        name = body["metadata"]["name"]
        found[name] = (
            body["status"]["brokerEpoch"],
            condition(body, "Ready"),
            stage.container(f"{name}-0")["containerID"],
        )
    return found


def _goes(stage: Stage) -> None:
    for kind, name in (("pod", IMPOSTOR[1]), ("secret", "forged")):
        stage.kubernetes.run("--namespace", NAMESPACE, "delete", kind, name)
    stage.recovered()
    for topic in stage.written:
        stage.produce(topic)
    stage.consume_all()


CHAPTER = Chapter(
    "impostors",
    "a pod that is let through as a broker, and is none",
    (
        Step("a pod with a broker's labels and its certificate is heard as that broker", _comes),
        Step(
            "without a certificate every listener refuses it, in one log line each",
            _without_certificate,
        ),
        Step("nor with one of another authority", _of_another_authority),
        Step("nor as another broker than its certificate's", _as_another),
        Step("brokers are unaffected", _goes),
    ),
    takes_s=52,
)
