"""Actions on objects in Argo CD, and their results."""

import copy
from typing import Any

import pytest
import yaml
from lupa import lua51

from tests import lua
from tidemark_operator.resources.names import PAUSED_ANNOTATION
from tidemark_operator.resources.record_deletion import RecordDeletionSpec
from tools import argocd_files

RESOLVED = [{"partition": 0, "offset": 40, "leaderEpoch": 1}, {"partition": 2, "offset": -1}]


def _object(kind: str, *, annotations: dict[str, str] | None = None, **fields: Any) -> Any:
    metadata: dict[str, Any] = {"name": "purge", "namespace": "ns", "uid": "u-1"}
    if annotations is not None:
        metadata["annotations"] = annotations
    spec = {"topicRef": {"name": "clicks"}, "all": {"beforeOffset": -1}}
    return {"apiVersion": "tidemark.dev/v1alpha1", "kind": kind, "metadata": metadata} | {
        "spec": spec,
        **fields,
    }


def _failed(reason: str, **status: Any) -> Any:
    stalled = {"type": "Stalled", "status": "True", "reason": reason}
    finished = {"conditions": [stalled], "completionTime": "2027-01-15T08:00:00Z"}
    return _object("RecordDeletion", status=finished | status)


def _offered(body: Any) -> set[str]:
    script = yaml.safe_load(lua.customization("actions", body["kind"]))["discovery.lua"]
    return {name for name, found in lua.run(script, body).items() if not found["disabled"]}


def _act(name: str, body: Any) -> Any:
    defined = yaml.safe_load(lua.customization("actions", body["kind"]))["definitions"]
    (script,) = (item["action.lua"] for item in defined if item["name"] == name)
    return lua.run(script, body)


@pytest.mark.parametrize("kind", argocd_files.ACTIONS)
def test_a_pause_is_an_annotation_and_is_taken_back(kind: str) -> None:
    body = _object(kind, annotations={"team": "web"})
    assert _offered(body) == {"pause"}
    paused = _act("pause", body)
    assert paused["metadata"]["annotations"] == {"team": "web", PAUSED_ANNOTATION: "true"}
    assert _offered(paused) == {"resume"}
    assert _act("resume", paused) == body


def test_an_object_without_annotations_is_paused_too() -> None:
    body = _object("Topic")
    assert _act("pause", body)["metadata"]["annotations"] == {PAUSED_ANNOTATION: "true"}
    assert _act("resume", body) == body


def test_finished_object_cannot_be_paused() -> None:
    assert _offered(_failed("TopicReplaced")) == set()


@pytest.mark.parametrize("reason", ["Timeout", "PartitionsFailed"])
def test_failed_deletion_is_retried_below_the_frozen_offsets(
    reason: str,
) -> None:
    """Its spec would also delete the records written since.

    A partition without an offset is left out, because -1 would delete everything.
    """
    body = _failed(reason, resolved=RESOLVED)
    body["spec"] |= {"timeout": "5m", "dryRun": True}
    before = copy.deepcopy(body)
    assert _offered(body) == {"retry"}
    (made,) = _act("retry", body)
    # The script returns another object, and leaves its input unchanged.
    assert body == before
    retry = made["resource"]
    assert (made["operation"], retry["metadata"]["name"]) == ("create", "purge-retry")
    (owner,) = retry["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("RecordDeletion", "purge", "u-1")
    spec = RecordDeletionSpec.model_validate(retry["spec"])
    assert [
        (partition.partition, partition.before_offset) for partition in spec.partitions or ()
    ] == [(0, 40)]
    assert (spec.topic_ref.name, spec.timeout, spec.dry_run) == ("clicks", "5m", True)


@pytest.mark.parametrize(
    "body",
    [
        _failed("TopicReplaced", resolved=RESOLVED),
        _failed("Timeout"),
        _failed("PartitionUnknown"),
        _object("RecordDeletion", status={"resolved": RESOLVED}),
    ],
    ids=["another topic by now", "nothing was frozen", "no such partition", "it runs"],
)
def test_other_objects_are_not_retried(body: Any) -> None:
    assert "retry" not in _offered(body)
    with pytest.raises(lua51.LuaError, match="make another one"):
        _act("retry", body)


def test_deletion_that_argo_cd_recreates_is_not_retried() -> None:
    """Neither is one with more partitions than a spec may name."""
    body = _failed("Timeout", resolved=RESOLVED)
    body["spec"]["ttlAfterFinished"] = "1h"
    assert _offered(body) == set()
    # 1,026 partitions are two more than the limit.
    assert _offered(_failed("Timeout", resolved=RESOLVED * 513)) == set()


def test_config_map_is_current() -> None:
    assert argocd_files.CONFIG_MAP.read_text() == argocd_files.render(), "run make argocd"
