"""Exports whose runs are SparkApplications, on the real API server with the real definition.

The test acts as the Spark operator (:mod:`spark_operator`). One run exports rows for real: the real
spark-submit creates the driver's pod, whose command the test runs as a process.
"""

import asyncio
import runpy
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.helm import CHART, Helm
from tests.integration.operator import jobs
from tests.integration.operator.cluster_world import ClusterWorld
from tests.integration.operator.spark_operator import (
    MOUNTS,
    SparkOperator,
    driver_command,
    driver_environment,
    installed,
    localized,
    mounted,
)
from tests.integration.operator.test_executors import (
    ACCOUNT,
    Rights,
    check_executor,
    client,
    cluster_of,
    executor_pods,
)
from tests.integration.operator.test_exports import IP, LOADED, start_export
from tests.integration.operator.test_rights import account
from tests.table_jars import MavenMissing, jars
from tests.unit.pipeline.small_tier import SmallTier
from tidemark.export_job import ExportJobPhase, JobReport, OptionPlace, Order
from tidemark_operator.controller.state.export_values import (
    DesiredJob,
    JobPhase,
    SecretFile,
    SecretVariable,
)
from tidemark_operator.jobs.kubernetes import NOT_ALLOWED, NOT_INSTALLED, KubernetesJobs
from tidemark_operator.jobs.runner import JobRefused
from tidemark_operator.kube.errors import Invalid
from tidemark_operator.kube.kinds import EXPORT, JOB, POD, SPARK_APPLICATION, Json
from tidemark_operator.pods.export_job import SPARK_CONTAINER, ExportRunIdentity, export_job
from tidemark_pipeline.export.formats import Format
from tidemark_pipeline.java import JavaMissing, find_java
from tidemark_pipeline.jobs.executor import executors_of
from tidemark_pipeline.session import LOOPBACK

SPARK = {"executors": {"instances": 2}, "sparkApplication": {}}
SPARK_S = 600
query = runpy.run_path(str(Path(__file__).parents[3] / "examples" / "10-export" / "query.py"))


def run_of(world: ClusterWorld, number: int = 1, uid: str = "u-1") -> ExportRunIdentity:
    return ExportRunIdentity(
        name="x", namespace=world.namespace, uid=uid, cluster="demo", number=number
    )


async def created_uid(world: ClusterWorld) -> str:
    """Create an Export that owns runs, and which no operator reconciles; return its uid."""
    return str((await jobs.create_export(world))["metadata"]["uid"])


def desired(order: Order | None = None, **job: Any) -> DesiredJob:
    return DesiredJob(
        order=order or Order(source={}, table={}),
        job={"image": jobs.IMAGE, **SPARK, **job},
    )


async def refusal(runner: KubernetesJobs, world: ClusterWorld) -> str:
    with pytest.raises(JobRefused) as refused:
        await runner.start(run_of(world), desired())
    return str(refused.value)


async def test_missing_right_and_missing_spark_operator_are_named(world: ClusterWorld) -> None:
    assert await refusal(KubernetesJobs(world.api, world.namespace), world) == NOT_ALLOWED
    # Without the definition there is no job, and none can be created.
    runner = KubernetesJobs(world.api, world.namespace, spark_applications=True)
    assert (await runner.look(run_of(world))).phase is JobPhase.ABSENT
    assert await refusal(runner, world) == NOT_INSTALLED


async def test_definition_accepts_every_field(world: ClusterWorld) -> None:
    place = {"nodeSelector": {"pool": "spot"}, "tolerations": [{"key": "spot"}]}
    batch = {"batchScheduler": "volcano", "queue": "lake", "sparkVersion": "4.1.0"}
    variants: list[dict[str, Any]] = [
        {},
        {"executors": {"min": 1, "max": 8, "cores": 2, "memory": "3Gi", "podTemplate": place}},
        {"sparkApplication": batch, "priorityClassName": "low", "imagePullPolicy": "Always"},
        {
            "serviceAccountName": "lake",
            "imagePullSecrets": [{"name": "pull"}],
            "conf": {"spark.driver.memory": "2g"},
            "nodeSelector": {"disk": "fast"},
            "podLabels": {"team": "a"},
            "podAnnotations": {"a": "b"},
            "affinity": {"nodeAffinity": {}},
        },
    ]
    secret = SecretVariable(variable="V", secret="s", key="k")
    file = SecretFile(place=OptionPlace.SOURCE, option="kafka.ssl.ca.location", secret="s", key="c")
    async with installed(world):
        path = SPARK_APPLICATION.path(world.namespace)
        # Without strict validation the API server drops unknown fields.
        query = {"fieldValidation": "Strict", "dryRun": "All"}
        for number, job in enumerate(variants):
            wanted = DesiredJob(
                order=Order(source={}, table={}),
                variables=(secret,),
                files=(file,),
                job={"image": jobs.IMAGE, **SPARK, **job},
            )
            body = export_job(run_of(world, number), wanted)
            await world.api._call("POST", path, query=query, body=body)
        body["spec"]["driver"]["tolerance"] = []
        with pytest.raises(Invalid, match="unknown field"):
            await world.api._call("POST", path, query=query, body=body)


@pytest.mark.full
async def test_account_of_the_chart_may_use_spark_applications(world: ClusterWorld) -> None:
    values = {"exports": {"sparkApplications": True}}
    objects = Helm(world.folder / "helm").template(CHART, values, namespace=world.namespace)
    token = await account(world, objects)
    async with installed(world), await client(world, token, "operator") as api:
        runner = KubernetesJobs(api, world.namespace, spark_applications=True)
        uid = await created_uid(world)
        run = run_of(world, uid=uid)
        await runner.start(run, desired())
        assert (await runner.look(run)).phase is JobPhase.STARTING
        # A run whose Job another leader has created would write to the same table.
        late = DesiredJob(order=Order(source={}, table={}), job={"image": jobs.IMAGE})
        await runner.start(run_of(world, 2, uid), late)
        await runner.look(run)
        await world.until(lambda: world.is_deleted(JOB, "x-2"), "the other run ends", LOADED)
        await runner.stop(run)
        await world.until(lambda: world.is_deleted(SPARK_APPLICATION, "x-1"), "it ends", LOADED)


@pytest.mark.full
@pytest.mark.timeout(900)
async def test_run_is_a_spark_application_that_is_watched_and_restarted(
    world: ClusterWorld,
) -> None:
    async with installed(world) as spark:
        await start_export(world, spark_applications=True, job=SPARK)
        await app(world, "x-1")
        await ready_message(world, "has not submitted the SparkApplication yet")
        await spark.state("x-1", "SUBMITTED")
        # A cluster without the webhook: the operator could report another run's pod.
        await spark.create_pod("x-1", is_owned=False)
        await ready_message(world, "Enable the webhook of the Spark operator")
        await world.delete(POD, "x-1-driver")
        await world.until(lambda: world.is_deleted(POD, "x-1-driver"), "the pod goes")
        await spark.create_pod("x-1")
        await spark.state("x-1", "RUNNING")
        async with jobs.page(IP) as page:
            page.report = JobReport(phase=ExportJobPhase.RUNNING, lag=0, rows=7, commits=1)
            await running(spark, "x-1")
            await world.condition(EXPORT, "x", "Ready", "True", "Running")
            # After its restart the Spark operator submits again, and fails: the pod runs.
            await spark.state("x-1", "FAILED", "driver pod already exist")
            asked = page.requests
            await world.until(lambda: page.requests > asked + 1, "it is watched on", LOADED)
            await world.condition(EXPORT, "x", "Ready", "True", "Running")
        await ended(spark, "x-1", None, code=137)
        condition = await world.condition(EXPORT, "x", "Ready", "False", "JobFailed")
        assert "OOMKilled (137)" in condition["message"]
        # The next run cannot be submitted: the condition has the Spark operator's message.
        await app(world, "x-2")
        await spark.state("x-2", "FAILED", "failed to submit spark application: no such image")
        await world.status_where(
            EXPORT, "x", lambda found: "no such image" in found.get("lastFailure", ""), LOADED
        )
        # A Job replaces it once the spec says so; its predecessor is deleted first.
        await world.patch(EXPORT, "x", job={"sparkApplication": None, "executors": None})
        await world.until(lambda: world.exists(JOB, "x-3"), "a Job", LOADED)


async def app(world: ClusterWorld, name: str) -> Json:
    await world.until(lambda: world.exists(SPARK_APPLICATION, name), name, LOADED)
    return await world.get(SPARK_APPLICATION, name)


async def ready_message(world: ClusterWorld, text: str) -> None:
    async def has() -> bool:
        return text in (await world.condition(EXPORT, "x", "Ready", "False"))["message"]

    await world.until(has, text)


async def running(spark: SparkOperator, name: str) -> None:
    await spark.pod_status(name, phase="Running", podIP=IP, podIPs=[{"ip": IP}])


async def ended(spark: SparkOperator, name: str, report: bytes | None, *, code: int) -> None:
    """Write the statuses of a driver that ended, and of its SparkApplication."""
    terminated = {
        "exitCode": code,
        "reason": "OOMKilled" if code == 137 else "Error" if code else "Completed",
        "message": (report or b"").decode(),
    }
    container = {
        "name": SPARK_CONTAINER,
        "image": jobs.IMAGE,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": terminated},
    }
    phase = "Failed" if code else "Succeeded"
    await spark.pod_status(name, phase=phase, containerStatuses=[container])
    await spark.state(name, "FAILED" if code else "COMPLETED")


@pytest.mark.full
@pytest.mark.timeout(1500)
async def test_submitted_driver_exports_rows_and_creates_executors(world: ClusterWorld) -> None:
    try:
        find_java()
        needed = tuple(map(str, jars(Format.ICEBERG)))
    except (JavaMissing, MavenMissing) as error:
        pytest.skip(str(error))
    SmallTier(world.tier, name="t").copy([b"%d" % number for number in range(30)])
    lake = world.folder / "lake"
    order = Order(
        source={"path": str(world.tier), "topic": "t"},
        table={"table": "db.t", "warehouse": str(lake)},
        jars=needed,
    )
    runner = KubernetesJobs(world.api, world.namespace, spark_applications=True)
    run = run_of(world, uid=await created_uid(world))
    rights = Rights(world)
    await rights.install()
    try:
        async with installed(world) as spark:
            await runner.start(run, desired(order, serviceAccountName=ACCOUNT))
            driver = await spark.submit("x-1")
            await spark.state("x-1", "RUNNING")
            folders = await mounted(world, driver)
            assert set(folders) == set(MOUNTS)
            # The driver creates executors with its own token.
            token = await rights.token(driver)
            for pod in await asyncio.to_thread(_executors, world, folders, token):
                check_executor(pod, driver)
                labels = pod["metadata"]["labels"]
                assert labels["sparkoperator.k8s.io/app-name"] == "x-1"
                assert run.executor_labels.items() <= labels.items()
            # The job exports rows, with threads of this machine instead of executors.
            report = world.folder / "report.json"
            await asyncio.to_thread(_export, driver, folders, report)
            await ended(spark, "x-1", report.read_bytes(), code=0)
            seen = await runner.look(run)
            assert (seen.phase, seen.well) == (JobPhase.ENDED, True)
            assert seen.report is not None
            assert (seen.report.phase, seen.report.rows) == (ExportJobPhase.DONE, 30)
    finally:
        await rights.remove()
    rows = query["query"](lake / "db" / "t", 'SELECT value FROM "t"')[1]
    assert sorted(int(bytes(value)) for (value,) in rows) == list(range(30))


#: Settings of a driver that no Service leads to.
HERE = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.port": "0",
    "spark.driver.blockManager.port": "0",
    "spark.blockManager.port": "0",
}
BIND = {"SPARK_DRIVER_BIND_ADDRESS": LOOPBACK}


def _executors(world: ClusterWorld, folders: Mapping[str, Path], token: str) -> list[Json]:
    """Return the pods of the executors that the driver creates."""
    (template,) = folders[MOUNTS[1]].iterdir()
    moved = {**HERE, "spark.kubernetes.executor.podTemplateFile": str(template)}
    properties = localized(folders[MOUNTS[0]] / "spark.properties", moved)
    with executors_of(BIND, properties) as executors:
        # A driver of spark-submit reaches the API server by its Service.
        server = {"spark.kubernetes.driver.master": cluster_of(world)["server"]}
        found = replace(executors, settings={**executors.settings, **server})
        prefix = "spark.kubernetes.authenticate.driver.mounted"
        return executor_pods(world, found, token, prefix)


def _export(driver: Json, folders: Mapping[str, Path], report: Path) -> None:
    """Run the command of the driver's container."""
    local = {**HERE, "spark.master": "local[2]"}
    properties = localized(folders[MOUNTS[0]] / "spark.properties", local)
    moved = {
        f"{MOUNTS[0]}/spark.properties": str(properties),
        "/dev/termination-log": str(report),
        "0.0.0.0:": f"{IP}:",
    }
    done = subprocess.run(
        driver_command(driver, moved),
        env=driver_environment(driver, BIND),
        capture_output=True,
        check=False,
        timeout=SPARK_S,
    )
    assert done.returncode == 0, done.stderr[-3000:]
