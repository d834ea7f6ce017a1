"""The API server enforces the state machines of status: no writer can move them backwards."""

from typing import Any

import pytest

from tests.integration.admission.api_server import (
    AdmissionApi,
    AdmissionRefused,
    Object,
    broker,
    cluster,
    record_deletion,
    tiered_topic,
)

TOPIC_ID = "bwwKHlTUSlWLQz_z2aDwqg"
OTHER_ID = "AAAAAAAAAAAAAAAAAAAAAA"


# Shorthand for the tiering part of a Topic's status.
def _tiering(state: str, epoch: int, policy: str | None = None) -> Object:
    tiering: Object = {"state": state, "epoch": epoch}
    return {"tiering": tiering if policy is None else {**tiering, "policy": policy}}


#: Status before, status after, and the message of the refusal (None if accepted).
Step = tuple[Object, Object, str | None]

STATES = "the tiering state changes only from Enabled to Disabling to Disabled to Enabled"
TOPIC_STEPS: dict[str, Step] = {
    "disable": (_tiering("Enabled", 1), _tiering("Disabling", 2, "Retain"), None),
    "disabled": (_tiering("Disabling", 2, "Retain"), _tiering("Disabled", 2, "Retain"), None),
    "enable again": (_tiering("Disabled", 2, "Retain"), _tiering("Enabled", 2), None),
    "enable again, epoch up": (_tiering("Disabled", 2, "Delete"), _tiering("Enabled", 3), None),
    "Retain to Delete": (
        _tiering("Disabled", 2, "Retain"), _tiering("Disabling", 3, "Delete"), None
    ),
    "Enabled to Disabled": (_tiering("Enabled", 1), _tiering("Disabled", 2, "Retain"), STATES),
    "Disabling to Enabled": (
        _tiering("Disabling", 2, "Retain"), _tiering("Enabled", 2, "Retain"), STATES
    ),
    "epoch goes back": (
        _tiering("Enabled", 5), _tiering("Enabled", 4), "the tiered epoch never goes back"
    ),
    "Disabling under the old epoch": (
        _tiering("Enabled", 5),
        _tiering("Disabling", 5, "Retain"),
        "a disablement requires a higher tiered epoch",
    ),
    "Disabling without a policy": (
        _tiering("Enabled", 5), _tiering("Disabling", 6), "state Disabling requires a policy"
    ),
    "policy changed while Disabling": (
        _tiering("Disabling", 2, "Retain"),
        _tiering("Disabling", 2, "Delete"),
        "policy cannot change while state is Disabling",
    ),
    "policy changed on the way out": (
        _tiering("Disabling", 2, "Delete"),
        _tiering("Disabled", 2, "Retain"),
        "policy cannot change while state is Disabling",
    ),
    "tiering forgotten": (_tiering("Enabled", 1), {}, "status.tiering cannot be removed"),
    "topic id set": ({}, {"topicId": TOPIC_ID}, None),
    "topic id changed": ({"topicId": TOPIC_ID}, {"topicId": OTHER_ID}, "topicId never changes"),
    "topic id forgotten": ({"topicId": TOPIC_ID}, {}, "topicId cannot be removed"),
    "topic id malformed": ({}, {"topicId": "x"}, "topicId in body should match"),
    "generation advances": ({"observedGeneration": 2}, {"observedGeneration": 3}, None),
    "generation goes back": (
        {"observedGeneration": 2}, {"observedGeneration": 1}, "observedGeneration never goes back"
    ),
    "newer controller": ({"controllerEpoch": 2}, {"controllerEpoch": 3}, None),
    "older controller": (
        {"controllerEpoch": 2}, {"controllerEpoch": 1}, "STALE_CONTROLLER_EPOCH: a newer controller"
    ),
    "reason that is no word": (
        {},
        {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "True",
                    "reason": "all well",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        },
        "conditions[0].reason in body should match",
    ),
    "condition with a fourth status": (
        {},
        {
            "conditions": [
                {
                    "type": "Ready",
                    "status": "Maybe",
                    "reason": "Well",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ]
        },
        'supported values: "True", "False", "Unknown"',
    ),
}  # fmt: skip


def _controller(identity: str, epoch: int) -> Object:
    return {"controller": {"identity": identity, "epoch": epoch}}


# The fields that identify a cluster must never disappear.
KEPT = "controller, slices, clusterId and nextProducerId cannot be removed"
CLUSTER_STEPS: dict[str, Step] = {
    "first controller": ({}, _controller("a", 1), None),
    "the same controller": (_controller("a", 1), _controller("a", 1), None),
    "take-over": (_controller("a", 1), _controller("b", 2), None),
    "take-over at the same epoch": (
        _controller("a", 1), _controller("b", 1), "STALE_CONTROLLER_EPOCH: another controller"
    ),
    "older controller": (
        _controller("b", 2), _controller("a", 1), "STALE_CONTROLLER_EPOCH: another controller"
    ),
    "controller forgotten": (_controller("b", 2), {}, KEPT),
    "slices": ({"slices": 64}, {"slices": 65}, "the number of slices is fixed"),
    "slices forgotten": ({"slices": 64}, {}, KEPT),
    "cluster id": ({"clusterId": "a"}, {"clusterId": "b"}, "clusterId never changes"),
    "producer ids advance": ({"nextProducerId": 1}, {"nextProducerId": 9}, None),
    "producer ids go back": (
        {"nextProducerId": 9}, {"nextProducerId": 1}, "nextProducerId never goes back"
    ),
    "another store": ({"storeId": "a"}, {"storeId": "b"}, None),
}  # fmt: skip

BROKER_STEPS: dict[str, Step] = {
    "registration": ({"brokerEpoch": 1}, {"brokerEpoch": 2, "incarnationId": "x"}, None),
    "epoch goes back": ({"brokerEpoch": 2}, {"brokerEpoch": 1}, "brokerEpoch never goes back"),
}

# A deletion's resolved offsets are the promise that every retry repeats.
_RESOLVED = {"resolved": [{"partition": 0, "offset": 10, "leaderEpoch": 1}]}
DELETION_STEPS: dict[str, Step] = {
    "resolved": ({}, {**_RESOLVED, "topicId": TOPIC_ID}, None),
    "progress": (_RESOLVED, {**_RESOLVED, "partitions": [{"partition": 0}], "records": 1}, None),
    "resolved again": (
        _RESOLVED,
        {"resolved": [{"partition": 0, "offset": 11, "leaderEpoch": 1}]},
        "resolved never changes",
    ),
    "resolved forgotten": (_RESOLVED, {"records": 1}, "resolved cannot be removed"),
    "another topic": ({"topicId": TOPIC_ID}, {"topicId": OTHER_ID}, "topicId never changes"),
}


def _cases() -> list[Any]:
    kinds = {
        "Topic": (tiered_topic(), TOPIC_STEPS),
        "Cluster": (cluster(), CLUSTER_STEPS),
        "Broker": (broker(), BROKER_STEPS),
        "RecordDeletion": (record_deletion(all={"beforeOffset": -1}), DELETION_STEPS),
    }
    return [
        pytest.param(body, *step, id=f"{kind}, {name}")
        for kind, (body, steps) in kinds.items()
        for name, step in steps.items()
    ]


@pytest.mark.parametrize(("body", "before", "after", "message"), _cases())
def test_status_transition(
    api: AdmissionApi, body: Object, before: Object, after: Object, message: str | None
) -> None:
    # A fresh object for each case, because statuses cannot move backwards.
    created = api.create({**body, "metadata": {"generateName": "status-"}})
    live = api.replace_status(created, before)
    if message is None:
        api.replace_status(live, after)
    else:
        with pytest.raises(AdmissionRefused) as refusal:
            api.replace_status(live, after)
        assert message in str(refusal.value)
    api.delete(live)


@pytest.mark.parametrize(
    "body",
    [tiered_topic(), record_deletion(all={"beforeOffset": -1})],
    ids=["Topic", "RecordDeletion"],
)
def test_paused_object_shows_it_in_a_column(api: AdmissionApi, body: Object) -> None:
    body = api.create(body)
    # The column is empty until the annotation is set.
    assert not api.printed(body)["Paused"]
    body["metadata"]["annotations"] = {"tidemark.dev/paused": "true"}
    assert api.printed(api.replace(body))["Paused"] == "true"


# Statuses as the operator writes them, with usual names: what `kubectl get` shows of each.
REPLICAS = {"desired": 10, "placed": 8, "inSync": 6, "placeholders": 2, "summary": "6/10"}


def _ready(status: str, reason: str, type_: str = "Ready") -> Object:
    return {
        "type": type_,
        "status": status,
        "observedGeneration": 1,
        "lastTransitionTime": "2026-01-01T00:00:00Z",
        "reason": reason,
    }


def _shown(api: AdmissionApi, body: Object, status: Object) -> Object:
    return api.printed(api.replace_status(api.create(body), status))


def _width(cells: Object, name: str) -> int:
    """Return the width of kubectl's line: it puts three spaces between columns."""
    texts = {**{column: str(cell or "") for column, cell in cells.items()}, "Name": name}
    return sum(max(len(column), len(text)) + 3 for column, text in texts.items()) - 3


def _by_default(cells: Object, *wide: str) -> Object:
    return {column: cell for column, cell in cells.items() if column not in wide}


def test_kubectl_shows_replicas_and_trouble_of_a_topic_within_100_columns(
    api: AdmissionApi,
) -> None:
    tiering = {**_tiering("Enabled", 1)["tiering"], "summary": "TierUnavailable"}
    status = {
        "replicas": REPLICAS,
        "tiering": tiering,
        "conditions": [_ready("True", "Serving")],
    }
    cells = _by_default(_shown(api, tiered_topic(), status), "Topic", "Replicas", "Remote segments")
    assert [cells[name] for name in ("In-Sync", "Placeholders", "Tiering", "Ready", "Reason")] == [
        "6/10", 2, "TierUnavailable", "True", "Serving"
    ]  # fmt: skip
    assert _width(cells, "orders") <= 100


def test_kubectl_shows_an_empty_column_for_a_status_of_an_older_operator(
    api: AdmissionApi,
) -> None:
    replicas = {name: figure for name, figure in REPLICAS.items() if name != "summary"}
    cells = _shown(api, tiered_topic(), {"replicas": replicas, **_tiering("Enabled", 1)})
    assert (cells["In-Sync"], cells["Tiering"], cells["Placeholders"]) == (None, None, 2)


def test_kubectl_shows_the_remote_storage_of_a_cluster_and_why_a_broker_is_away(
    api: AdmissionApi,
) -> None:
    lost = [_ready("False", "RemoteStorageUnavailable", "RemoteStorageReady")]
    assert _shown(api, cluster(), {"conditions": lost})["Tier"] == "RemoteStorageUnavailable"
    away = {"conditions": [_ready("False", "Fenced"), _ready("False", "Fenced", "Registered")]}
    cells = _shown(api, broker(), away)
    assert (cells["Ready"], cells["Reason"]) == ("False", "Fenced")
