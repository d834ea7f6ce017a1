"""Unsupported keys are rejected; an older object that has one can still change everything else."""

import copy
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.admission.api_server import (
    AdmissionApi,
    AdmissionRefused,
    Object,
    cluster,
    documents,
    edited,
    topic,
)

CRDS = Path(__file__).parents[3] / "crds"
OLD_TOPIC = topic(config={"compression.type": "zstd", "preallocate": "true", "flush.ms": "5"})
OLD_CLUSTER = cluster(config={"log.preallocate": "true", "log.cleaner.min.cleanable.ratio": "0.5"})


def _crd(kind: str) -> Object:
    (definition,) = documents(CRDS / f"tidemark.dev_{kind}.yaml")
    return definition


def _before(definition: Object) -> Object:
    """Return the definition without the rule, as it was when such keys were admitted."""
    older = copy.deepcopy(definition)
    schema: Any = older["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    config = schema["properties"]["spec"]["properties"]["config"]
    rules = config["x-kubernetes-validations"]
    # The rule is the one that compares with the old object (ratcheting).
    config["x-kubernetes-validations"] = [r for r in rules if not r.get("optionalOldSelf")]
    assert len(config["x-kubernetes-validations"]) == len(rules) - 1
    return older


def _until(reached: Callable[[], bool]) -> None:
    """Wait; an API server takes a moment to use a definition that it has just stored."""
    deadline = time.monotonic() + 30
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def _admitted(api: AdmissionApi, body: Object) -> bool:
    try:
        api.try_create(body)
    except AdmissionRefused:
        return False
    return True


@pytest.fixture(params=[("topics", OLD_TOPIC), ("clusters", OLD_CLUSTER)], ids=["Topic", "Cluster"])
def stored(request: pytest.FixtureRequest, api: AdmissionApi) -> Iterator[Object]:
    """An object with keys that were admitted once, while they no longer are."""
    kind, body = request.param
    definition = _crd(kind)
    try:
        # Store the object under the older definition, then restore the present one.
        api.install(_before(definition))
        _until(lambda: _admitted(api, body))
        live = api.create({**body, "metadata": {"generateName": "old-"}})
    finally:
        api.install(definition)
        # From here on such an object could not be created any more.
        _until(lambda: not _admitted(api, body))
    yield live
    api.delete(live)


def test_object_with_unsupported_keys_stays_writable(api: AdmissionApi, stored: Object) -> None:
    live = api.replace(stored)
    # Finalizers, status, labels and other keys can all be changed.
    live = api.replace(edited(live, "metadata.finalizers", ["tidemark.dev/test"]))
    live = api.replace_status(live, {"observedGeneration": 1})
    live = api.replace(edited(live, "metadata.labels", {"a": "b"}))
    changed = "retention/ms" if live["kind"] == "Topic" else "log/retention/ms"
    live = api.replace(edited(live, f"spec.config.{changed}", "7"))
    api.replace(edited(live, "metadata.finalizers", []))


def test_new_unsupported_keys_are_refused(api: AdmissionApi, stored: Object) -> None:
    preallocate = "preallocate" if stored["kind"] == "Topic" else "log/preallocate"
    delay = "file/delete/delay/ms" if stored["kind"] == "Topic" else "log/segment/delete/delay/ms"
    # The value of an unsupported key may change, another such key may not be added.
    live = api.replace(edited(stored, f"spec.config.{preallocate}", "false"))
    for path, value in ((preallocate, "true"), (delay, "1")):
        with pytest.raises(AdmissionRefused, match=r"is not served.*\. Supported keys: "):
            api.replace(edited(live, f"spec.config.{path}", value))
    # Removing the whole map is allowed.
    api.replace(edited(live, "spec.config", ...))


def test_unsupported_keys_in_a_new_configuration_are_refused(api: AdmissionApi) -> None:
    live = api.create(topic())
    with pytest.raises(
        AdmissionRefused, match=r"compression\.type is not served, except with the value producer"
    ):
        api.replace(edited(live, "spec.config", {"compression.type": "zstd"}))
    api.replace(edited(live, "spec.config", {"compression.type": "producer"}))
    api.delete(live)
