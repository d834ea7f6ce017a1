"""Releases are installed, upgraded and removed on an API server without a kubelet."""

import json
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.helm import BASE_CHART, CHART, Helm, HelmRefused
from tests.integration.chart.kubernetes import KubectlClient, KubectlRefused
from tests.integration.chart.test_rendering import ON_S3
from tidemark_operator.objects.ownership import MANAGER
from tidemark_operator.resources.kinds import KINDS

pytestmark = pytest.mark.usefixtures("base")

CRDS = {
    f"customresourcedefinition.apiextensions.k8s.io/{kind.plural}.tidemark.dev" for kind in KINDS
}
TOPIC = {
    "apiVersion": "tidemark.dev/v1alpha1",
    "kind": "Topic",
    "spec": {"clusterRef": {"name": "tidemark"}, "partitions": 1, "replicationFactor": 1},
}


def install(helm: Helm, namespace: str) -> None:
    helm.run("install", "tidemark", str(CHART), "--namespace", namespace, values=ON_S3)


def uids(kubernetes: KubectlClient, namespace: str) -> dict[str, str]:
    """Return the uids of all objects with user data."""
    kinds = "clusters.tidemark.dev,brokers.tidemark.dev,topics.tidemark.dev"
    return {
        f"{body['kind']}/{body['metadata']['name']}": body["metadata"]["uid"]
        for body in kubernetes.all(namespace, kinds)
    }


@pytest.mark.full
def test_next_release_adopts_what_a_release_left(helm: Helm, kubernetes: KubectlClient) -> None:
    namespace = kubernetes.namespace()
    install(helm, namespace)
    kubernetes.create({**TOPIC, "metadata": {"name": "t", "namespace": namespace}})
    before = uids(kubernetes, namespace)
    # One Cluster, three Brokers and the Topic of the test.
    assert len(before) == 5
    helm.run("uninstall", "tidemark", "--namespace", namespace)
    # Everything that runs is removed.
    kinds = "statefulsets,services,roles,rolebindings,networkpolicies"
    assert kubernetes.names(namespace, kinds) == []
    assert kubernetes.names(namespace, "serviceaccounts") == ["serviceaccount/default"]
    # Objects with data survive their release, and are adopted by the next one.
    assert uids(kubernetes, namespace) == before
    install(helm, namespace)
    assert uids(kubernetes, namespace) == before


def test_upgrade_and_rollback_keep_user_data(helm: Helm, kubernetes: KubectlClient) -> None:
    namespace = kubernetes.namespace()
    install(helm, namespace)
    before = uids(kubernetes, namespace)
    # Three replicas of the operator, and one broker fewer.
    fewer = dict(ON_S3["brokers"])
    del fewer["broker-2"]
    changed = ON_S3 | {"operator": {"replicas": 3}, "brokers": fewer}
    helm.run("upgrade", "tidemark", str(CHART), "--namespace", namespace, values=changed)
    spec = kubernetes.get(namespace, "statefulset/tidemark-operator")["spec"]
    assert spec["replicas"] == 3
    assert uids(kubernetes, namespace) == before, "a broker is not removed by leaving out a line"
    helm.run("rollback", "tidemark", "1", "--namespace", namespace)
    spec = kubernetes.get(namespace, "statefulset/tidemark-operator")["spec"]
    assert spec["replicas"] == 2
    assert uids(kubernetes, namespace) == before


@pytest.mark.full
def test_definitions_are_upgraded_and_survive_their_release(
    helm: Helm, kubernetes: KubectlClient, tmp_path: Path
) -> None:
    namespace = kubernetes.namespace()
    kubernetes.create({**TOPIC, "metadata": {"name": "t", "namespace": namespace}})
    before = uids(kubernetes, namespace)
    newer = tmp_path / "newer"
    # A newer base chart whose Topic definition has one more short name.
    shutil.copytree(BASE_CHART, newer)
    path = newer / "files" / "crds" / "tidemark.dev_topics.yaml"
    text = path.read_text("utf-8")
    path.write_text(text.replace("    shortNames:\n", "    shortNames:\n      - newer\n"), "utf-8")
    helm.run("upgrade", "tidemark-base", str(newer))
    names = kubernetes.get(namespace, "crd/topics.tidemark.dev")["spec"]["names"]["shortNames"]
    assert "newer" in names
    helm.run("uninstall", "tidemark-base")
    # Definitions survive the release, since deleting them deletes all objects.
    assert set(kubernetes.names(namespace, "crd")) >= CRDS
    assert not kubernetes.names(namespace, "validatingadmissionpolicies")
    assert uids(kubernetes, namespace) == before
    # The next release takes over the definitions.
    helm.run("install", "tidemark-base", str(BASE_CHART))
    names = kubernetes.get(namespace, "crd/topics.tidemark.dev")["spec"]["names"]["shortNames"]
    assert "newer" not in names
    assert uids(kubernetes, namespace) == before


@pytest.fixture(scope="module")
def may(kubernetes: KubectlClient) -> str:
    """Return the namespace of a user with Tidemark's part of `edit`."""
    namespace = kubernetes.namespace()
    binding = ("rolebinding", "editor", "--clusterrole=tidemark-edit", "--user=editor")
    kubernetes.run("-n", namespace, "create", *binding)
    return namespace


@pytest.mark.full
@pytest.mark.parametrize(
    ("verb", "what", "answer"),
    [
        ("create", "topics.tidemark.dev", "yes"),
        ("deletecollection", "users.tidemark.dev", "yes"),
        ("update", "exports.tidemark.dev", "yes"),
        ("create", "clusters.tidemark.dev", "no"),
        ("patch", "clusters.tidemark.dev", "no"),
        ("patch", "brokers.tidemark.dev", "no"),
        ("delete", "brokers.tidemark.dev", "no"),
        ("update", "topics.tidemark.dev/status", "no"),
        ("patch", "clusters.tidemark.dev/status", "no"),
        ("get", "partitionslices.tidemark.dev", "no"),
        ("delete", "partitionslices.tidemark.dev", "no"),
    ],
)
def test_editors_reach_neither_a_status_nor_the_slices(
    kubernetes: KubectlClient, may: str, verb: str, what: str, answer: str
) -> None:
    what, slash, part = what.partition("/")
    subresource = (f"--subresource={part}",) if slash else ()
    # A subresource is a separate flag of kubectl.
    question = ("auth", "can-i", verb, what, *subresource, "--as=editor")
    try:
        output = kubernetes.run("-n", may, *question)
    except KubectlRefused:  # "no" is an exit status, too
        output = "no"
    assert output.strip() == answer


#: KubectlClient' aggregated roles to which each of the chart's roles is added.
ADDED = {"view": {"view", "edit", "admin"}, "edit": {"edit", "admin"}, "admin": {"admin"}}


@pytest.mark.full
def test_roles_add_to_those_of_kubernetes(kubernetes: KubectlClient) -> None:
    """The labels are those that the controller manager selects, which does not run here."""
    prefix = "rbac.authorization.k8s.io/aggregate-to-"
    for name, added in ADDED.items():
        role = kubernetes.get("default", f"clusterrole/tidemark-{name}")
        labels = role["metadata"]["labels"]
        # No role gives access to statuses or slices. The number of Readers is a scale.
        assert {key.removeprefix(prefix) for key in labels if key.startswith(prefix)} == added
        for rule in role["rules"]:
            resources = set(rule["resources"]) - {"clusters/scale"}
            assert not any("/" in resource or "slice" in resource for resource in resources)


@pytest.mark.full
def test_upgrade_does_not_overwrite_changes_of_kafka_clients(
    helm: Helm, kubernetes: KubectlClient
) -> None:
    namespace = kubernetes.namespace()
    install(helm, namespace)
    # A Kafka client set a key through the operator, which applied it under its field manager.
    client_change = {
        "apiVersion": "tidemark.dev/v1alpha1",
        "kind": "Cluster",
        "metadata": {"name": "tidemark", "namespace": namespace},
        "spec": {"config": {"log.segment.bytes": "1048576"}},
    }
    apply = ("apply", "--server-side", f"--field-manager={MANAGER}", "-f", "-")
    kubernetes.run(*apply, stdin=json.dumps(client_change))
    spec = ON_S3["cluster"]["spec"]
    changed_spec = spec | {"config": spec["config"] | {"log.segment.bytes": "2097152"}}
    upgrade = ("upgrade", "tidemark", str(CHART), "--namespace", namespace)
    # Helm 4 applies server-side, so a conflict is an error instead of an overwrite.
    with pytest.raises(HelmRefused, match=f'conflict with "{MANAGER}"'):
        helm.run(*upgrade, values=ON_S3 | {"cluster": {"spec": changed_spec}})
    # An upgrade that does not name the key keeps it.
    helm.run(*upgrade, values=ON_S3)
    config = kubernetes.get(namespace, "clusters.tidemark.dev/tidemark")["spec"]["config"]
    assert config == spec["config"] | client_change["spec"]["config"]


class Kubelet:
    """Sets the final phase of the pod of ``helm test``, as a kubelet would."""

    def __init__(self, kubernetes: KubectlClient, namespace: str) -> None:
        self._kubernetes = kubernetes
        self._namespace = namespace

    def ends(self, phase: str) -> None:
        """Wait for a pod that has not ended, and set its final phase."""
        deadline_s = time.monotonic() + 60
        while not self._pending():
            assert time.monotonic() < deadline_s, "helm test has made no pod"
            time.sleep(0.1)
        status = json.dumps({"status": {"phase": phase}})
        patch = ("patch", "pod", "tidemark-test", "--subresource=status", "-p", status)
        self._kubernetes.run("-n", self._namespace, *patch)

    def _pending(self) -> bool:
        try:
            pod = self._kubernetes.get(self._namespace, "pod/tidemark-test")
        except KubectlRefused:
            return False
        return bool(pod["status"]["phase"] == "Pending")


@pytest.mark.full
def test_helm_test_leaves_only_a_failed_pod(helm: Helm, kubernetes: KubectlClient) -> None:
    namespace = kubernetes.namespace()
    install(helm, namespace)
    kinds = "pods,serviceaccounts,roles,rolebindings,networkpolicies"
    before = kubernetes.names(namespace, kinds)
    kubelet = Kubelet(kubernetes, namespace)
    test = ("test", "tidemark", "--namespace", namespace)
    with ThreadPoolExecutor(1) as pool:
        # `helm test` waits for its pod, which no kubelet runs here.
        failing = pool.submit(helm.run, *test)
        kubelet.ends("Failed")
        with pytest.raises(HelmRefused, match="tidemark-test"):
            failing.result()
        # A failed pod stays, so that its log can be read.
        assert set(kubernetes.names(namespace, kinds)) - set(before) == {"pod/tidemark-test"}
        passing = pool.submit(helm.run, *test)
        kubelet.ends("Succeeded")
        assert "Phase:          Succeeded" in passing.result()
    # A successful run leaves nothing.
    assert kubernetes.names(namespace, kinds) == before
