"""The chart's account of Export jobs on the real API server manages only executors of its pod."""

import asyncio
import base64
from typing import Any

import pytest
import yaml
from pyspark import SparkContext

from tests.helm import CHART, Helm
from tests.integration.operator.cluster_world import ClusterWorld
from tests.unit.pods.test_export_executors import order_of, with_executors
from tidemark.export_job import (
    EXECUTORS_VARIABLE,
    NAMESPACE_VARIABLE,
    POD_ADDRESS_VARIABLE,
    POD_NAME_VARIABLE,
)
from tidemark_operator.kube.access import KubernetesAccess
from tidemark_operator.kube.client import KubeApi
from tidemark_operator.kube.errors import Forbidden, Invalid, NotFound
from tidemark_operator.kube.kinds import Json
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.jobs.executor import ExecutorSettings, executors_of
from tidemark_pipeline.session import LOOPBACK, local_session

ACCOUNT = "tidemark-exports"
_RBAC = "/apis/rbac.authorization.k8s.io/v1"
_ADMISSION = "/apis/admissionregistration.k8s.io/v1"
_CLUSTER_WIDE = {
    "ValidatingAdmissionPolicy": "validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "validatingadmissionpolicybindings",
}
_NAMESPACED = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": _RBAC + "/namespaces/{}/roles",
    "RoleBinding": _RBAC + "/namespaces/{}/rolebindings",
}
TIMEOUT_S = 60


class Rights:
    """The chart's objects for executors, and clients with tokens of pods."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world
        self._cluster_wide: list[str] = []
        self.pods = f"/api/v1/namespaces/{world.namespace}/pods"

    async def install(self) -> None:
        values = {"exports": {"serviceAccount": {"create": True}, "executors": True}}
        helm = Helm(self._world.folder / "helm")
        for made in helm.template(CHART, values, namespace=self._world.namespace):
            name, kind = made["metadata"]["name"], made["kind"]
            # Only what is there for executors.
            if kind in _CLUSTER_WIDE:
                path = f"{_ADMISSION}/{_CLUSTER_WIDE[kind]}"
                await self._world.api._call("POST", path, body=made)
                self._cluster_wide.append(f"{path}/{name}")
            elif kind in _NAMESPACED and name in (ACCOUNT, "tidemark-executors"):
                path = _NAMESPACED[kind].format(self._world.namespace)
                await self._world.api._call("POST", path, body=made)

    async def remove(self) -> None:
        for path in self._cluster_wide:
            await self._world.api._call("DELETE", path)

    async def driver(self, name: str) -> Json:
        """Create the pod of a job."""
        return await self._world.api._call("POST", self.pods, body=pod_body(name))

    async def token(self, pod: Json) -> str:
        """Return a token as the pod's projected volume has it."""
        meta = pod["metadata"]
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}
        request = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "spec": {"boundObjectRef": bound},
        }
        path = f"/api/v1/namespaces/{self._world.namespace}/serviceaccounts/{ACCOUNT}/token"
        return str((await self._world.api._call("POST", path, body=request))["status"]["token"])


def pod_body(name: str) -> Json:
    """Return the pod of a job, as far as it matters here."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "serviceAccountName": ACCOUNT,
            "automountServiceAccountToken": False,
            "containers": [{"name": "c", "image": "pipeline:1"}],
        },
    }


def reference(pod: Json) -> Json:
    meta = pod["metadata"]
    return {"apiVersion": "v1", "kind": "Pod", "name": meta["name"], "uid": meta["uid"]}


def executor(name: str, owner: Json, **spec: Any) -> Json:
    """Return an executor as the template has it."""
    pod: Json = dict(order_of(with_executors(instances=1)).pod)
    pod["metadata"] = {**pod["metadata"], "name": name, "ownerReferences": [reference(owner)]}
    pod["spec"] = {**pod["spec"], "serviceAccountName": ACCOUNT, **spec}
    pod["spec"]["containers"] = [{**item, "image": "p"} for item in pod["spec"]["containers"]]
    return pod


async def client(world: ClusterWorld, token: str, name: str) -> KubeApi:
    kubeconfig = world.folder / f"{name}.kubeconfig"
    text = world.kubeconfig.read_text("utf-8")
    kubeconfig.write_text(with_token(text, token), "utf-8")
    return await KubeApi.open(KubernetesAccess(kubeconfig))


def with_token(text: str, token: str) -> str:
    body = yaml.safe_load(text)
    for user in body["users"]:
        user["user"] = {"token": token}
    return str(yaml.safe_dump(body))


async def test_driver_manages_only_executors_of_its_own_pod(world: ClusterWorld) -> None:
    rights = Rights(world)
    await rights.install()
    try:
        own, other = await rights.driver("x-1"), await rights.driver("y-1")
        apis = [
            await client(world, await rights.token(pod), pod["metadata"]["name"])
            for pod in (own, other)
        ]
        async with apis[0] as mine, apis[1] as theirs:
            # A policy takes effect a moment after it was created.
            await _until_refused(mine, rights, pod_body("free"))
            await theirs._call("POST", rights.pods, body=executor("theirs", other))
            refused = {
                "of another pod": executor("e", other),
                "without an owner": {**executor("e", own), "metadata": {"name": "e"}},
                "a token": executor("e", own, automountServiceAccountToken=True),
                "another account": executor("e", own, serviceAccountName="default"),
                "a Secret": executor(
                    "e", own, volumes=[{"name": "s", "secret": {"secretName": "s"}}]
                ),
                "a node": executor("e", own, volumes=[{"name": "s", "hostPath": {"path": "/"}}]),
                "the network": executor("e", own, hostNetwork=True),
            }
            labelled = executor("e", own)
            labelled["metadata"] = {
                **labelled["metadata"],
                "labels": {"app.kubernetes.io/name": "tidemark-broker"},
            }
            value = {"secretKeyRef": {"name": "s", "key": "k"}}
            with_secret = executor("e", own)
            with_secret["spec"]["containers"][0]["env"] = [{"name": "A", "valueFrom": value}]
            refused |= {"labels of a broker": labelled, "the value of a Secret": with_secret}
            for what, pod in refused.items():
                with pytest.raises((Invalid, Forbidden)):
                    print(what, await mine._call("POST", rights.pods, body=pod))
            for path in (f"{rights.pods}/theirs", f"{rights.pods}/y-1", f"{rights.pods}/x-1"):
                with pytest.raises((Invalid, Forbidden)):
                    await mine._call("DELETE", path)
            with pytest.raises(Forbidden):
                await mine._call("GET", f"/api/v1/namespaces/{world.namespace}/secrets/s")
            # Its own executor: created, changed and deleted.
            await mine._call("POST", rights.pods, body=executor("mine", own))
            await mine._call("DELETE", f"{rights.pods}/mine")
    finally:
        await rights.remove()


@pytest.mark.full
async def test_spark_creates_and_removes_executors_with_the_rights_of_the_chart(
    world: ClusterWorld,
) -> None:
    try:
        find_java()
    except JavaMissing as error:
        pytest.skip(str(error))
    rights = Rights(world)
    await rights.install()
    try:
        driver = await rights.driver("x-1")
        found = await asyncio.to_thread(_session, world, driver, await rights.token(driver))
        for pod in found:
            check_executor(pod, driver)
            assert pod["spec"]["containers"][0]["image"] == "pipeline:1"
        # Spark deletes its executors when the session ends.
        for pod in found:
            with pytest.raises(NotFound):
                await world.api._call("GET", f"{rights.pods}/{pod['metadata']['name']}")
    finally:
        await rights.remove()


def check_executor(pod: Json, driver: Json) -> None:
    """Verify that an executor belongs to the driver's pod and runs the program of the image."""
    assert pod["metadata"]["ownerReferences"][0]["uid"] == driver["metadata"]["uid"]
    (only,) = pod["spec"]["containers"]
    assert only["command"] == ["python3", "-m", "tidemark_pipeline.jobs.executor"]
    assert only["args"] == ["executor"]


def _session(world: ClusterWorld, driver: Json, token: str) -> list[Json]:
    """Start a session of a Job's driver, and return the pods of its executors."""
    host, _, port = cluster_of(world)["server"].removeprefix("https://").rpartition(":")
    # The environment of the job's pod.
    environment = {
        EXECUTORS_VARIABLE: order_of(with_executors(instances=2), ACCOUNT).to_json(),
        POD_NAME_VARIABLE: driver["metadata"]["name"],
        POD_ADDRESS_VARIABLE: LOOPBACK,
        NAMESPACE_VARIABLE: world.namespace,
        "KUBERNETES_SERVICE_HOST": host,
        "KUBERNETES_SERVICE_PORT": port,
    }
    with executors_of(environment) as executors:
        return executor_pods(world, executors, token)


def cluster_of(world: ClusterWorld) -> Json:
    """Return the cluster of the kubeconfig."""
    (found,) = yaml.safe_load(world.kubeconfig.read_text("utf-8"))["clusters"]
    return dict(found["cluster"])


def executor_pods(
    world: ClusterWorld,
    executors: ExecutorSettings,
    token: str,
    prefix: str = "spark.kubernetes.authenticate",
) -> list[Json]:
    """Start a session with executors, and return their pods, which no kubelet runs.

    ``prefix``: of Spark's settings with the token.
    """
    # A pod has the token and the authority as files; the driver runs on this machine.
    settings = {
        **executors.settings,
        f"{prefix}.oauthToken": token,
        f"{prefix}.caCertFile": _authority(world),
        "spark.driver.port": "0",
        "spark.blockManager.port": "0",
        "spark.driver.bindAddress": LOOPBACK,
    }
    try:
        with local_session(
            "executors", master=executors.master, log=world.folder / "spark.log", settings=settings
        ):
            return asyncio.run(_pods(world))
    finally:
        # The JVM of this process keeps the settings with which it started. The next session would
        # have them, among them this token.
        jvm = SparkContext._jvm
        for name in settings if jvm is not None else ():
            jvm.java.lang.System.clearProperty(name)


def _authority(world: ClusterWorld) -> str:
    cluster = cluster_of(world)
    if "certificate-authority" in cluster:
        return str(cluster["certificate-authority"])
    path = world.folder / "ca.crt"
    path.write_bytes(base64.b64decode(cluster["certificate-authority-data"]))
    return str(path)


async def _pods(world: ClusterWorld) -> list[Json]:
    """Wait for two executors."""
    path = f"/api/v1/namespaces/{world.namespace}/pods"
    async with await KubeApi.open(KubernetesAccess(world.kubeconfig)) as api:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                query = {"labelSelector": "spark-role=executor"}
                found: list[Json] = (await api._call("GET", path, query=query))["items"]
                if len(found) == 2:
                    return found
                await asyncio.sleep(0.2)


async def _until_refused(api: KubeApi, rights: Rights, pod: Json) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            try:
                await api._call("POST", rights.pods, query={"dryRun": "All"}, body=pod)
            except (Invalid, Forbidden) as error:
                if "belong to its own pod" in error.message:
                    return
            await asyncio.sleep(0.1)
