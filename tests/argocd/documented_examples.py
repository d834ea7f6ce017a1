"""Examples of docs/how-to/argocd.md, run in Argo CD itself.

Each script runs in Argo CD's interpreter, and a repository is synchronized to a cluster of ours
with three brokers.
"""

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests import lua
from tests.argocd import states
from tests.argocd.parts import NAMESPACE, ArgoCd
from tests.argocd.repository import FOLDER, Repository
from tests.conformance.local_cluster import RunningCluster, run_cluster
from tidemark.reason_table import TABLE
from tidemark_operator.resources.names import PAUSED_ANNOTATION
from tools import argocd_files

EXAMPLE = argocd_files.ROOT / "examples" / "09-argocd"
WAIT_S = 180
WAVE = "argocd.argoproj.io/sync-wave"

# ---------------------------------------------------------------- its interpreter


def overrides(folder: Path, body: dict[str, Any], *command: str) -> str:
    """Return Argo CD's result for an object, without a server."""
    path = folder / "object.json"
    path.write_text(json.dumps(body), "utf-8")
    name, *more = command
    return ArgoCd.overrides(argocd_files.CONFIG_MAP, name, path, *more)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("heading", TABLE)
def test_every_reason_has_the_health_that_the_unit_tests_say(heading: str, tmp_path: Path) -> None:
    for reason, body in states.in_every_state(heading):
        expected = lua.run(lua.customization("health", body["kind"]), body)
        said = overrides(tmp_path, body, "health")
        assert f"STATUS: {expected['status']}\nMESSAGE: {expected['message']}\n" in said, reason


def test_what_is_deleted_is_in_progress_whatever_its_conditions_say(tmp_path: Path) -> None:
    body = states.body("Topic", states.status("Topic", []))
    assert "STATUS: Healthy" in overrides(tmp_path, body, "health")
    body["metadata"]["deletionTimestamp"] = "2027-01-15T08:00:00Z"
    assert "STATUS: Progressing\nMESSAGE: Pending deletion" in overrides(tmp_path, body, "health")


@pytest.mark.parametrize("kind", argocd_files.ACTIONS)
def test_a_pause_and_its_end(kind: str, tmp_path: Path) -> None:
    body = states.body(kind, states.status(kind, []))
    body["metadata"]["annotations"] = {"team": "web"}
    body["spec"] = {"config": {}}
    said = overrides(tmp_path, body, "run-action", "pause")
    assert f'>     {PAUSED_ANNOTATION}: "true"' in said
    assert "config" not in said  # an empty map has not become a list
    body["metadata"]["annotations"] = {PAUSED_ANNOTATION: "true"}
    said = overrides(tmp_path, body, "run-action", "resume")
    assert f'<     {PAUSED_ANNOTATION}: "true"' in said
    listed = overrides(tmp_path, body, "list-actions").split()
    offered = dict(zip(listed[2::2], listed[3::2], strict=False))
    assert (offered["pause"], offered["resume"]) == ("true", "false")


def test_a_failed_deletion_is_tried_again_as_another_object(tmp_path: Path) -> None:
    (failed,) = (
        body
        for reason, body in states.in_every_state("RecordDeletion")
        if reason == "PartitionsFailed"
    )
    failed["metadata"]["uid"] = "u-1"
    failed["spec"] = {"topicRef": {"name": "clicks"}, "all": {"beforeOffset": -1}}
    failed["status"]["resolved"] = [{"partition": 0, "offset": 9_007_199_254_740_991}]
    said = overrides(tmp_path, failed, "run-action", "retry")
    assert "name: it-retry" in said
    assert "beforeOffset: 9007199254740991" in said
    assert "all:" not in said


# ---------------------------------------------------------------- a repository


class Site:
    """A cluster, Argo CD, a repository, and one Application of that."""

    def __init__(self, cluster: RunningCluster, argocd: ArgoCd, folder: Path) -> None:
        self.cluster, self.argocd = cluster, argocd
        self.kubectl, self.namespace = argocd.kubectl, cluster.local.settings.namespace
        self.repository = Repository(folder)

    def apply(self) -> None:
        """The example's Application, with this repository."""
        body = yaml.safe_load((EXAMPLE / "argocd" / "application.yaml").read_text("utf-8"))
        assert body["spec"]["source"]["path"] == FOLDER
        body["spec"]["source"]["repoURL"] = self.repository.url
        body["spec"]["destination"]["namespace"] = self.namespace
        self.kubectl.apply(NAMESPACE, body)

    def application(self) -> dict[str, Any]:
        """Return the Application's status."""
        body = self.kubectl.get(NAMESPACE, "application", "tidemark")
        return dict(body.get("status") or {})

    def healths(self) -> dict[str, tuple[str, str]]:
        """(synced or not, health) of each object, by ``Kind/name``."""
        return _healths(self.application())

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Wait until ``holds`` returns true."""
        deadline = time.monotonic() + WAIT_S
        while not holds():
            if time.monotonic() > deadline:
                status = json.dumps(self.application(), indent=1)[:6000]
                log = self.argocd.log("application-controller").read_text("utf-8")[-3000:]
                raise AssertionError(f"not so in {WAIT_S} s: {what}\n{status}\n{log}")
            time.sleep(0.5)

    def until_all(self, **expected: str) -> None:
        """Wait until the last commit is there, all of it synced and healthy, but ``expected`` by
        their names."""
        head = self.repository.head

        def as_wanted() -> bool:
            status = self.application()
            return status.get("sync", {}).get("revision") == head and all(
                health == ("Synced", expected.get(name.partition("/")[2], "Healthy"))
                for name, health in _healths(status).items()
            )

        self.until(as_wanted, f"all synced and healthy, but {expected}")

    def live(self, kind: str, name: str) -> dict[str, Any]:
        """An object as it is."""
        found = self.cluster.kube.get(kind, name)
        assert found is not None, f"{kind} {name} is not there"
        return found

    def gone(self, kind: str, name: str) -> bool:
        """Whether it is no more."""
        return self.cluster.kube.get(kind, name) is None


def _healths(status: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {
        f"{resource['kind']}/{resource['name']}": (
            resource["status"],
            resource.get("health", {}).get("status"),
        )
        for resource in status.get("resources") or []
    }


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("argocd")
    with run_cluster(folder / "cluster") as cluster:
        kubeconfig = cluster.local.kubeconfig
        with ArgoCd(kubeconfig, folder, argocd_files.CONFIG_MAP) as argocd:
            made = Site(cluster, argocd, folder / "git")
            made.repository.write("0-cluster", *_as_they_run(cluster))
            for path in sorted(EXAMPLE.glob("[12]-*.yaml")):
                made.repository.write(path.stem, *yaml.safe_load_all(path.read_text("utf-8")))
            made.apply()
            made.until_all()
            yield made


def _as_they_run(cluster: RunningCluster) -> list[dict[str, Any]]:
    """Cluster and Brokers of the example have another store: these are those that are there."""
    names = ("apiVersion", "kind", "spec")
    return [
        {name: body[name] for name in names}
        | {"metadata": {"name": body["metadata"]["name"], "annotations": {WAVE: "0"}}}
        for kind in ("Cluster", "Broker")
        for body in (
            {"kind": kind, "apiVersion": "tidemark.dev/v1alpha1"} | object_
            for object_ in cluster.kube.objects(kind)
        )
    ]


def topic(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Topic",
        "metadata": {"name": name, "annotations": {WAVE: "1"}},
        "spec": {"clusterRef": {"name": "tidemark"}, "partitions": 1, "replicationFactor": 1}
        | spec,
    }


@pytest.mark.timeout(600)
def test_example_syncs_in_waves_without_ignored_differences(site: Site) -> None:
    found = site.healths()
    assert len(found) == 6
    assert set(found.values()) == {("Synced", "Healthy")}
    # The waves order the creation: the topic first, the deletion of its records later.
    made = [
        site.live(kind, name)["metadata"]["creationTimestamp"]
        for kind, name in (("Topic", "orders"), ("RecordDeletion", "orders-before-2014"))
    ]
    assert made == sorted(made)
    deletion = site.live("RecordDeletion", "orders-before-2014")["status"]
    ready = next(
        item
        for item in site.live("Topic", "orders")["status"]["conditions"]
        if item["type"] == "Ready"
    )
    # The second wave waits for the health of the first one.
    assert deletion["startTime"] >= ready["lastTransitionTime"]
    before = site.application()
    site.until(
        lambda: site.application()["reconciledAt"] > before["reconciledAt"], "it looks once more"
    )
    # Fields that the operator writes must not count as differences.
    after = site.application()
    assert after["sync"]["status"] == "Synced"
    assert len(after["history"]) == len(before["history"]), "nothing was set back"


@pytest.mark.timeout(600)
def test_manual_edit_is_reverted_and_pause_is_kept(site: Site) -> None:
    site.repository.write("edited", topic("edited", config={"retention.ms": "60000"}))
    site.until_all()
    # An edit by hand of a field that the repository has is set back.
    change = {"spec": {"config": {"retention.ms": "7"}}}
    merge = ("patch", "topic", "edited", "-n", site.namespace, "--type", "merge", "--patch")
    site.kubectl(*merge, json.dumps(change))

    def kept() -> bool:
        return site.live("Topic", "edited")["spec"]["config"] == {"retention.ms": "60000"}

    site.until(kept, "the edit is set back")
    # The annotation is not in the repository, so it may stay, also over another look.
    site.kubectl("annotate", "topic", "edited", "-n", site.namespace, f"{PAUSED_ANNOTATION}=true")
    site.until_all(edited="Suspended")
    before = site.application()["reconciledAt"]
    site.until(lambda: site.application()["reconciledAt"] > before, "it looks once more")
    site.until_all(edited="Suspended")
    site.kubectl("annotate", "topic", "edited", "-n", site.namespace, f"{PAUSED_ANNOTATION}-")
    site.until_all()
    site.repository.remove("edited")
    site.until(lambda: site.gone("Topic", "edited"), "the topic is pruned")


@pytest.mark.timeout(600)
def test_topic_grows_with_a_commit_and_is_pruned_with_its_file(site: Site) -> None:
    deletion = {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "RecordDeletion",
        "metadata": {"name": "once", "annotations": {WAVE: "2"}},
        "spec": {
            "topicRef": {"name": "grown"},
            "partitions": [{"partition": 0, "beforeOffset": 0}],
        },
    }
    # A deletion in a later wave that is done at once, as offset 0 deletes nothing.
    site.repository.write("grown", topic("grown"), deletion)
    site.until_all()
    # A commit with more partitions makes the topic grow.
    site.repository.write("grown", topic("grown", partitions=3), deletion)

    def grown() -> bool:
        return site.live("Topic", "grown").get("status", {}).get("partitionsPlaced") == 3

    site.until(grown, "three partitions")
    site.until_all()
    site.repository.remove("grown")
    site.until(
        lambda: site.gone("Topic", "grown") and site.gone("RecordDeletion", "once"),
        "both are pruned",
    )
    site.until_all()


@pytest.mark.timeout(600)
def test_waiting_and_refused_objects_are_distinguishable(site: Site) -> None:
    """In the last wave, so that nothing has to wait for them."""
    # One waits for a Cluster that may still come, the other has a name that another Topic has.
    waits = topic("waits", clusterRef={"name": "missing"})
    refused = topic("refused", topicName="orders")
    for body in (waits, refused):
        body["metadata"]["annotations"][WAVE] = "3"
    site.repository.write("ill", waits, refused)
    site.until_all(waits="Progressing", refused="Degraded")
    (message,) = (
        item["health"]["message"]
        for item in site.application()["resources"]
        if item["name"] == "refused"
    )
    assert message.startswith("NameTaken: ")
    assert site.application()["health"]["status"] == "Degraded"
    site.repository.remove("ill")
    site.until(
        lambda: site.gone("Topic", "waits") and site.gone("Topic", "refused"), "both are pruned"
    )
    site.until_all()
