"""The Spark operator without its controller: the test acts as it, as its webhook, and as the
kubelet, with its release's definition of SparkApplications.

Its spark-submit is the real one of PySpark, with the arguments that release 2.3 passes.
"""

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import uuid
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyspark
import pytest
import yaml

from tests.integration.operator.cluster_world import ClusterWorld
from tests.suites.packages import Missing, go_module
from tidemark_operator.kube.errors import Conflict, KubeError, NotFound
from tidemark_operator.kube.kinds import POD, SPARK_APPLICATION, Json

DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
NAME = f"{SPARK_APPLICATION.plural}.{SPARK_APPLICATION.group}"
_PREFIX = SPARK_APPLICATION.group
_DRIVER, _EXECUTOR = "spark.kubernetes.driver", "spark.kubernetes.executor"
#: Where Spark mounts its ConfigMaps.
MOUNTS = ("/opt/spark/conf", "/opt/spark/pod-template")
_WAIT_S = 120


def definition() -> Json:
    """Return the definition of SparkApplications that the pinned release has."""
    try:
        folder = go_module("spark-operator", "github.com/kubeflow/spark-operator/v2")
    except Missing as missing:
        pytest.skip(str(missing))
    text = folder / "config" / "crd" / "bases" / f"{_PREFIX}_{SPARK_APPLICATION.plural}.yaml"
    found: Json = yaml.load(text.read_text("utf-8"), yaml.CSafeLoader)
    return found


@contextlib.asynccontextmanager
async def installed(world: ClusterWorld) -> AsyncIterator["SparkOperator"]:
    """Install the definition for one test: others are about clusters without it."""
    body = await asyncio.to_thread(definition)
    with contextlib.suppress(Conflict):  # left by a test that was ended
        await world.api._call("POST", DEFINITIONS, body=body)
    await world.until(lambda: _is_served(world), "SparkApplications are served", _WAIT_S)
    try:
        yield SparkOperator(world)
    finally:
        await world.api._call("DELETE", f"{DEFINITIONS}/{NAME}")
        # The API server first deletes all SparkApplications, and accepts no others meanwhile.
        await world.until(lambda: _is_removed(world), "the definition is removed", _WAIT_S)


async def _is_removed(world: ClusterWorld) -> bool:
    try:
        await world.api._call("GET", f"{DEFINITIONS}/{NAME}")
    except NotFound:
        return True
    return False


async def _is_served(world: ClusterWorld) -> bool:
    try:
        await world.api.list_all(SPARK_APPLICATION, world.namespace)
    except KubeError:
        return False
    return True


class SparkOperator:
    """Submits SparkApplications of a namespace and writes their status."""

    def __init__(self, world: ClusterWorld) -> None:
        self._world = world

    async def state(self, name: str, state: str, error: str = "") -> None:
        """Write a state as the Spark operator does."""
        status = {
            "applicationState": {"state": state, **({"errorMessage": error} if error else {})},
            "driverInfo": {"podName": f"{name}-driver"},
            "executionAttempts": 1,
        }
        await self._world.api.merge_patch(
            SPARK_APPLICATION, self._world.namespace, name, {"status": status}, "status"
        )

    async def create_pod(self, name: str, *, is_owned: bool = True) -> Json:
        """Create the driver's pod from the template, without spark-submit."""
        app = await self._world.get(SPARK_APPLICATION, name)
        template = app["spec"]["driver"]["template"]
        meta = {
            **template["metadata"],
            "name": f"{name}-driver",
            **({"ownerReferences": [owner(app)]} if is_owned else {}),
        }
        (container,) = template["spec"]["containers"]
        spec = {
            **template["spec"],
            "containers": [{**container, "image": app["spec"]["image"]}],
        }
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}
        return await self._world.api.create(POD, self._world.namespace, pod)

    async def pod_status(self, name: str, **status: Any) -> None:
        """Write the status of the driver's pod, as a kubelet."""
        await self._world.api.merge_patch(
            POD, self._world.namespace, f"{name}-driver", {"status": status}, "status"
        )

    async def submit(self, name: str) -> Json:
        """Run spark-submit, and return the driver's pod, which the webhook has given an owner."""
        app = await self._world.get(SPARK_APPLICATION, name)
        done = await asyncio.to_thread(self._run, app)
        assert done.returncode == 0, done.stderr[-3000:]
        change = {"metadata": {"ownerReferences": [owner(app)]}}
        return await self._world.api.merge_patch(
            POD, self._world.namespace, f"{name}-driver", change
        )

    def _run(self, app: Json) -> "subprocess.CompletedProcess[str]":
        spark = Path(pyspark.__file__).parent
        (cluster,) = yaml.safe_load(self._world.kubeconfig.read_text("utf-8"))["clusters"]
        master = f"k8s://{cluster['cluster']['server']}"
        # The Spark operator writes the templates to files.
        templates = self._world.folder / "templates"
        templates.mkdir()
        for role in ("driver", "executor"):
            text = yaml.safe_dump(app["spec"][role]["template"])
            (templates / f"{role}.yaml").write_text(text, "utf-8")
        settings = dict(submit_settings(app, templates))
        command: list[str] = [
            *(str(spark / "bin" / "spark-submit"), "--master", master, "--deploy-mode", "cluster"),
            *("--name", app["metadata"]["name"]),
            *(word for pair in settings.items() for word in ("--conf", "=".join(pair))),
            app["spec"]["mainApplicationFile"],
        ]
        # It returns once the pod exists, as waitAppCompletion is off.
        environment = {
            **os.environ,
            "SPARK_HOME": str(spark),
            "KUBECONFIG": str(self._world.kubeconfig),
        }
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=300
        )


def submit_settings(app: Json, templates: Path) -> Iterator[tuple[str, str]]:
    """Yield the settings of spark-submit; later ones win. ``templates``: folder of two files."""
    meta, spec = app["metadata"], app["spec"]
    driver, executor = spec["driver"], spec["executor"]
    yield "spark.kubernetes.namespace", meta["namespace"]
    yield "spark.kubernetes.container.image", spec["image"]
    yield "spark.kubernetes.submission.waitAppCompletion", "false"
    yield from spec.get("sparkConf", {}).items()
    # Both roles have the labels of the SparkApplication, and then their own.
    yield f"{_DRIVER}.pod.name", f"{meta['name']}-driver"
    submission = str(uuid.uuid4())
    for prefix, role, labels in ((_DRIVER, driver, {}), (_EXECUTOR, executor, executor["labels"])):
        yield (
            f"{prefix}.podTemplateFile",
            str(templates / f"{'driver' if role is driver else 'executor'}.yaml"),
        )
        container = "driver" if role is driver else "executor"
        yield f"{prefix}.podTemplateContainerName", f"spark-kubernetes-{container}"
        yield f"{prefix}.label.{_PREFIX}/app-name", meta["name"]
        yield f"{prefix}.label.{_PREFIX}/launched-by-spark-operator", "true"
        yield f"{prefix}.label.{_PREFIX}/submission-id", submission
        for key, value in {**meta["labels"], **labels}.items():
            yield f"{prefix}.label.{key}", value
    # The rest describes the account of the driver, and the executors.
    if "serviceAccount" in driver:
        yield "spark.kubernetes.authenticate.driver.serviceAccountName", driver["serviceAccount"]
    yield "spark.executor.instances", str(executor["instances"])
    yield "spark.executor.cores", str(executor["cores"])
    yield "spark.executor.memory", executor["memory"]


def owner(app: Json) -> Json:
    """Return the owner of the driver's pod, as the webhook sets it."""
    meta = app["metadata"]
    return {
        "apiVersion": SPARK_APPLICATION.api_version,
        "kind": SPARK_APPLICATION.kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }


async def mounted(world: ClusterWorld, pod: Json) -> dict[str, Path]:
    """Write the ConfigMaps of a driver's pod to folders; return them by their mount's path."""
    (container,) = pod["spec"]["containers"]
    paths = {item["name"]: item["mountPath"] for item in container["volumeMounts"]}
    found: dict[str, Path] = {}
    for volume in pod["spec"]["volumes"]:
        if "configMap" not in volume:
            continue
        name = volume["configMap"]["name"]
        path = f"/api/v1/namespaces/{world.namespace}/configmaps/{name}"
        folder = found[paths[volume["name"]]] = world.folder / name
        folder.mkdir()
        texts = (await world.api._call("GET", path))["data"]
        # The kubelet leaves out keys that are not listed.
        for item in volume["configMap"]["items"]:
            (folder / item["path"]).write_text(texts[item["key"]], "utf-8")
    return found


def driver_command(pod: Json, moved: Mapping[str, str]) -> list[str]:
    """Return the command of the image's entry point; ``moved``: paths and addresses here."""
    (container,) = pod["spec"]["containers"]
    assert "command" not in container
    return [sys.executable, *(_moved(word, moved) for word in container["args"])]


def driver_environment(pod: Json, values: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the driver's container. ``values``: those that Kubernetes knows."""
    (container,) = pod["spec"]["containers"]
    given = {item["name"]: item.get("value", "") for item in container["env"]}
    # The JVM of this machine has its own folders.
    own = {name: text for name, text in given.items() if not name.startswith(("SPARK_CONF_DIR",))}
    return {**os.environ, **own, **values}


def localized(file: Path, changes: Mapping[str, str]) -> Path:
    """Return a copy of a properties file with other values."""
    text = file.read_text("utf-8")
    for key, value in changes.items():
        text = re.sub(rf"(?m)^{re.escape(key)}=.*$", f"{key}={value}", text)
    copy = file.with_name("local.properties")
    copy.write_text(text, "utf-8")
    return copy


def _moved(word: str, moved: Mapping[str, str]) -> str:
    for path, here in moved.items():
        word = word.replace(path, here)
    return word
