"""One case for each rule of the operator's Role: the action that needs it, and where its absence is
reported.

The report is a condition, an Event, the answer to a Kafka client or, if the account may not write
either, the operator's log.
"""

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.pods import objects
from e2e.pods.client import BOOTSTRAP
from e2e.pods.kubernetes import condition, not_ready
from e2e.pods.objects import NAMESPACE
from e2e.pods.stage import OPERATOR, Stage

ADMIN = Path(__file__).with_name("admin_program.py")
CLUSTER = "clusters.tidemark.dev/tidemark"
BROKER = "brokers.tidemark.dev/broker-1"
LEASE = f"lease/{OPERATOR}"
USER = "rights-user"
Rule = dict[str, Any]
#: What is still missing; "" once nothing is. The number: since when, by the monotonic clock.
Look = Callable[[Stage, float], str]


@dataclass(frozen=True, slots=True)
class Case:
    """Case for the rule with this verb on this resource of this group.

    ``disturb`` starts the action that needs it.
    """

    group: str
    resource: str
    verb: str
    disturb: Callable[[Stage], None]
    noticed: Look
    healed: Look

    def is_of(self, rule: Rule) -> bool:
        """Return whether a rule grants this case's right."""
        return (
            self.group in rule["apiGroups"]
            and self.resource in rule["resources"]
            and self.verb in rule["verbs"]
        )


# ------------------------------------------------------------ what is done


def _nothing(stage: Stage) -> None:
    """Disturb nothing: the operator uses the right by itself."""


def _make_topic(name: str) -> Callable[[Stage], None]:
    body = objects.topic(name, partitions=1, replicationFactor=3)
    return lambda stage: stage.kubernetes.apply(body)


def _make_user(stage: Stage) -> None:
    stage.kubernetes.apply(objects.user(USER))


def _make_deletion(stage: Stage) -> None:
    stage.make_topic("rights-deleted")
    stage.kubernetes.apply(
        objects.record_deletion("rights-deletion", "rights-deleted", {0: 0}, ttlAfterFinished="1s")
    )


def _make_export(name: str) -> Callable[[Stage], None]:
    """Create an Export whose job stays pending: its image is not available."""

    def disturb(stage: Stage) -> None:
        stage.make_topic(name)
        job = {"image": objects.UNAVAILABLE_IMAGE, "imagePullPolicy": "Never"}
        stage.kubernetes.apply(objects.export(name, name, job=job))

    return disturb


def _new_term(stage: Stage) -> None:
    """Make another operator leader, which lists everything again."""
    stage.replace(stage.leading_pod())


def _new_term_and_topic(name: str) -> Callable[[Stage], None]:
    def disturb(stage: Stage) -> None:
        _new_term(stage)
        _make_topic(name)(stage)

    return disturb


def _delete_lease(stage: Stage) -> None:
    """With the finalizer by which the operator keeps it; and something is to be decided."""
    _make_topic("rights-lease")(stage)
    # The finalizer goes after the deletion was requested, so the Lease disappears at once.
    change = json.dumps({"metadata": {"finalizers": None}})
    stage.kubernetes.run("--namespace", NAMESPACE, "delete", LEASE, "--wait=false")
    stage.kubernetes.run("--namespace", NAMESPACE, "patch", LEASE, "--type=merge", "-p", change)


def _ask(what: str, topic: str) -> Callable[[Stage], str]:
    """A Kafka client's answer."""
    return lambda stage: stage.python((NAMESPACE, "client"), ADMIN, what, BOOTSTRAP, topic).strip()


# ------------------------------------------------------------ what is seen


def _says(what: str, kind: str, *reasons: str) -> Look:
    """A condition of an object has one of the reasons."""

    def missing(stage: Stage, _: float) -> str:
        found = condition(stage.kubernetes.get(NAMESPACE, what), kind)
        return "" if found.get("reason") in reasons else f"{what}: {kind}: {found}"

    return missing


def _ready(what: str) -> Look:
    return lambda stage, _: not_ready(stage.kubernetes.get(NAMESPACE, what))


def _job_starts(name: str) -> Look:
    """And the Export is given up: it is never Ready."""
    what = f"exports.tidemark.dev/{name}"
    starts = _says(what, "Ready", "JobStarting")

    def missing(stage: Stage, since_s: float) -> str:
        complaint = starts(stage, since_s)
        if not complaint:
            stage.delete(what)
        return complaint

    return missing


def _gone(kind: str, name: str) -> Look:
    return lambda stage, _: name if name in stage.kubernetes.names(NAMESPACE, kind) else ""


def _event(reason: str, name: str) -> Look:
    def missing(stage: Stage, _: float) -> str:
        found = stage.kubernetes.all(NAMESPACE, "events.events.k8s.io")
        told = {(item["reason"], item["regarding"]["name"]) for item in found}
        return "" if (reason, name) in told else f"no Event {reason} of {name}"

    return missing


def _logged(*words: str) -> Look:
    """A line of an operator has all of the words."""

    def missing(stage: Stage, since_s: float) -> str:
        # Only lines since the rule was withdrawn.
        ago_s = math.ceil(time.monotonic() - since_s)
        for name in stage.operator_pods():
            log = stage.kubernetes.log(NAMESPACE, name, ago_s)
            if any(all(word in line for word in words) for line in log.splitlines()):
                return ""
        return f"no operator says: {' … '.join(words)}"

    return missing


def _answered(what: str, topic: str, words: str) -> Look:
    def missing(stage: Stage, _: float) -> str:
        answer = _ask(what, topic)(stage)
        return "" if words in answer else f"a client receives: {answer}"

    return missing


def _and(*looks: Look) -> Look:
    return lambda stage, since_s: next(filter(None, (look(stage, since_s) for look in looks)), "")


def _topic_ready(name: str) -> Look:
    return _ready(f"topics.tidemark.dev/{name}")


def _pods_up_to_date(stage: Stage, since_s: float) -> str:
    names = (f"brokers.tidemark.dev/broker-{n}" for n in range(1, stage.brokers + 1))
    return _and(*(_says(name, "PodUpToDate", "UpToDate") for name in names))(stage, since_s)


DENIED = "AccessDenied"
TIDEMARK = "tidemark.dev"
CASES = (
    Case(
        # Reads are needed at the start of a term, so another operator has to take over.
        *(TIDEMARK, "topics", "list", _new_term_and_topic("rights-list")),
        noticed=_logged("no operator can take over", "is forbidden"),
        healed=_topic_ready("rights-list"),
    ),
    Case(
        *(TIDEMARK, "topics", "patch", _make_topic("rights-patch")),
        noticed=_says("topics.tidemark.dev/rights-patch", "Stalled", DENIED),
        healed=_topic_ready("rights-patch"),
    ),
    Case(
        *(TIDEMARK, "topics/status", "update", _make_topic("rights-status")),
        noticed=_event(DENIED, "rights-status"),
        healed=_topic_ready("rights-status"),
    ),
    Case(
        # A Kafka client's CreateTopics makes a Topic, and the client receives the refusal.
        *(TIDEMARK, "topics", "create", _nothing),
        noticed=_answered("create", "rights-theirs", "PolicyViolationError"),
        healed=_answered("create", "rights-theirs", "done"),
    ),
    Case(
        *(TIDEMARK, "recorddeletions", "delete", _make_deletion),
        noticed=_says("recorddeletions.tidemark.dev/rights-deletion", "Stalled", DENIED),
        healed=_gone("recorddeletions.tidemark.dev", "rights-deletion"),
    ),
    Case(
        *(TIDEMARK, "partitionslices", "update", _make_topic("rights-slices")),
        noticed=_says(CLUSTER, "Stalled", "SliceRefused", DENIED),
        healed=_topic_ready("rights-slices"),
    ),
    Case(
        *("", "secrets", "get", _make_user),
        noticed=_says("users.tidemark.dev/rights-user", "Ready", "SecretRefused"),
        healed=_ready("users.tidemark.dev/rights-user"),
    ),
    Case(
        *("apps", "statefulsets", "patch", _new_term),
        noticed=_says(BROKER, "PodUpToDate", "PodRefused"),
        healed=_pods_up_to_date,
    ),
    Case(
        *("", "services", "patch", _new_term),
        noticed=_and(
            _says(BROKER, "PodUpToDate", "PodRefused", "VolumeRefused"),
            _says(CLUSTER, "Stalled", "BrokersRefused"),
        ),
        healed=_and(_pods_up_to_date, _ready(CLUSTER)),
    ),
    Case(
        *("", "services", "list", _new_term),
        noticed=_says(BROKER, "Stalled", DENIED),
        healed=_and(_says(BROKER, "Stalled", "Progressing"), _pods_up_to_date, _ready(CLUSTER)),
    ),
    Case(
        *("", "persistentvolumeclaims", "list", _new_term),
        noticed=_says(BROKER, "PodUpToDate", "VolumeRefused"),
        healed=_pods_up_to_date,
    ),
    Case(
        *("batch", "jobs", "create", _make_export("rights-jobs")),
        noticed=_says("exports.tidemark.dev/rights-jobs", "Stalled", "JobRefused", DENIED),
        healed=_job_starts("rights-jobs"),
    ),
    Case(
        *("", "pods", "list", _make_export("rights-pods")),
        noticed=_says("exports.tidemark.dev/rights-pods", "Stalled", DENIED),
        healed=_job_starts("rights-pods"),
    ),
    Case(
        *("policy", "poddisruptionbudgets", "patch", _new_term),
        noticed=_says(CLUSTER, "Stalled", "BrokersRefused"),
        healed=_says(CLUSTER, "Stalled", "Progressing"),
    ),
    Case(
        *("coordination.k8s.io", "leases", "create", _delete_lease),
        noticed=_logged("the Lease could not be read or written", "cannot create"),
        healed=_topic_ready("rights-lease"),
    ),
    Case(
        *("coordination.k8s.io", "leases", "update", _make_topic("rights-renewal")),
        noticed=_and(
            _logged("the Lease could not be read or written", "is forbidden"),
            _logged("no longer the leader"),
        ),
        healed=_topic_ready("rights-renewal"),
    ),
    Case(
        # Without the right to write Events, only the log can report it.
        *("events.k8s.io", "events", "create", _make_topic("rights-events")),
        noticed=_logged("PartitionsPlaced was not written", "is forbidden"),
        healed=_topic_ready("rights-events"),
    ),
)
