"""Exports on the real API server, which stores the Jobs that the operator creates. The test itself
acts as the Job controller and kubelet (:mod:`jobs`)."""

import os
from pathlib import Path

import pytest

from tests.integration.operator import jobs
from tests.integration.operator.cluster_world import ClusterWorld
from tidemark.export_job import ExportJobPhase, JobReport
from tidemark_operator.controller.state.export_values import DesiredJob
from tidemark_operator.kube.kinds import CLUSTER, CONFIG_MAP, EXPORT, JOB, SECRET, TOPIC, Json
from tidemark_operator.pods.export_job import ExportRunIdentity, export_job
from tidemark_operator.resources.names import OFFERED_ANNOTATION

pytestmark = pytest.mark.full

#: A loopback address of each test process: pods' pages share one port.
IP = f"127.8.{os.getpid() // 250 % 250}.{1 + os.getpid() % 250}"
LOADED = 90.0
CATALOG_TOKEN = {"name": "token", "secretKeyRef": {"name": "catalog", "key": "token"}}


async def start_export(
    world: ClusterWorld, *, spark_applications: bool = False, **spec: object
) -> None:
    """A Cluster with a broker, a Topic, an Export of it."""
    await world.create_cluster()
    operator = await jobs.start_operator(world, spark_applications=spark_applications)
    await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await world.condition(TOPIC, "t", "Ready", "True")
    await jobs.create_export(world, **spec)


async def number(world: ClusterWorld) -> int:
    return int((await world.get(EXPORT, "x"))["status"]["run"]["number"])


async def test_manifest_becomes_a_job_that_is_watched_and_restarted(
    world: ClusterWorld,
) -> None:
    await start_export(world)
    # The order of the job has the topic and the tier, resolved by the operator.
    made = await jobs.job(world, "x-1")
    assert jobs.order(made).source["topic"] == "t"
    assert jobs.order(made).source["path"] == str(world.tier)
    # Without a pod the job is starting.
    await world.condition(EXPORT, "x", "Ready", "False", "JobStarting")
    async with jobs.page(IP) as page:
        page.report = JobReport(phase=ExportJobPhase.RUNNING, lag=7, rows=0)
        await jobs.run(world, "x-1", IP)
        await world.status_where(EXPORT, "x", lambda status: status.get("lag") == 7)
        # The process runs, but nothing shows yet that it can export.
        await world.condition(EXPORT, "x", "Exporting", "Unknown", "JobStarting")
        assert (await world.condition(EXPORT, "x", "Ready", "False", "JobStarting"))["message"]
        page.report = JobReport(phase=ExportJobPhase.RUNNING, lag=5, rows=2, commits=1)
        await world.condition(EXPORT, "x", "Ready", "True", "Running")
        # The status came from the page, not from the Job.
        assert page.requests
    # The node runs out of memory: the page does not answer, and the last report is old.
    await jobs.end(world, "x-1", None, code=137)
    condition = await world.condition(EXPORT, "x", "Ready", "False", "JobFailed")
    # 137 is the exit code of a container killed for its memory.
    assert "OOMKilled (137)" in condition["message"]
    assert "run 1 failed" in await world.event("ExportFailed")
    # The next run starts after a pause of ten seconds.
    second = await _within(world, "x-2")
    assert jobs.order(second) == jobs.order(made)
    async with jobs.page(IP) as page:
        page.report = JobReport(phase=ExportJobPhase.RUNNING, lag=0, rows=7, commits=1)
        await jobs.run(world, "x-2", IP)
        await world.condition(EXPORT, "x", "Ready", "True", "Running")
        # A changed spec ends it, and the next one starts once it is deleted.
        await world.patch(EXPORT, "x", source={"options": {"failOnDataLoss": "false"}})
        await world.until(lambda: world.is_deleted(JOB, "x-2"), "the job of the former spec ends")
    third = await _within(world, "x-3")
    assert jobs.order(third).source["failOnDataLoss"] == "false"
    assert await number(world) == 3
    # A Job created late by an operator that lost leadership would take the table from run 3.
    uid = str((await world.get(EXPORT, "x"))["metadata"]["uid"])
    late = ExportRunIdentity(
        name="x", namespace=world.namespace, uid=uid, cluster="demo", number=1000
    )
    condition = DesiredJob(order=jobs.order(made), job={"image": jobs.IMAGE})
    await world.api.create(JOB, world.namespace, export_job(late, condition))
    await world.until(lambda: world.is_deleted(JOB, "x-1000"), "a job of no run that there is ends")
    # The Topic goes, and no job is left.
    await world.delete(TOPIC, "t")
    await world.condition(EXPORT, "x", "Ready", "False", "TopicNotFound")
    await world.until(lambda: world.is_deleted(JOB, "x-3"), "no job is left")
    await world.status_where(EXPORT, "x", lambda found: found["run"].get("outcome") == "Stopped")


async def test_labelled_topics_reach_the_running_job(world: ClusterWorld) -> None:
    await world.create_cluster()
    operator = await jobs.start_operator(world)
    await world.start_broker(1, operator)
    for name in ("t1", "t2"):
        await world.create_topic(name, replicas=1)
        await world.condition(TOPIC, name, "Ready", "True")
    await world.api.merge_patch(
        TOPIC, world.namespace, "t1", {"metadata": {"labels": {"lake": "yes"}}}
    )
    topics = {"selector": {"matchLabels": {"lake": "yes"}}}
    await jobs.create_export(world, topicRef=None, topics=topics, table={"name": "db.{topic}"})
    made = await jobs.job(world, "x-1")
    (volume,) = (v for v in made["spec"]["template"]["spec"]["volumes"] if "configMap" in v)
    name = volume["configMap"]["name"]

    async def has(text: str) -> bool:
        if await world.is_deleted(CONFIG_MAP, name):
            return False
        return bool((await world.get(CONFIG_MAP, name))["data"] == {"topics": text})

    await world.until(lambda: has("t1"), "the ConfigMap has the topic")
    (owner,) = (await world.get(CONFIG_MAP, name))["metadata"]["ownerReferences"]
    assert owner["uid"] == made["metadata"]["uid"]
    await world.api.merge_patch(
        TOPIC, world.namespace, "t2", {"metadata": {"labels": {"lake": "yes"}}}
    )
    await world.until(lambda: has("t1\nt2"), "the ConfigMap has both topics")
    # The same job runs.
    assert await number(world) == 1
    assert (await jobs.job(world, "x-1"))["metadata"]["uid"] == made["metadata"]["uid"]


async def _within(world: ClusterWorld, name: str) -> Json:
    await world.until(lambda: world.exists(JOB, name), f"Job {name}", LOADED)
    return await world.get(JOB, name)


@pytest.mark.long
async def test_scheduled_run_records_its_report(world: ClusterWorld) -> None:
    await start_export(world, schedule="0 0 1 1 *")
    condition = await world.condition(EXPORT, "x", "Ready", "True", "Scheduled")
    # The first of January: no run is due.
    assert "-01-01T00:00:00Z" in condition["message"]
    assert await world.is_deleted(JOB, "x-1")
    # The test sets the time back, instead of waiting for a year.
    await world.patch(EXPORT, "x", schedule="* * * * *")
    await _within(world, "x-1")
    done = JobReport(
        phase=ExportJobPhase.DONE, lag=0, rows=12, commits=2, committed_ms=1, current_ms=1
    )
    # The pod of a run that has already ended.
    await jobs.run(world, "x-1", phase="Pending", podIP="", podIPs=[])
    await jobs.end(world, "x-1", done, code=0)
    found = await world.status_where(
        EXPORT,
        "x",
        lambda found: found["run"].get("outcome") == "Succeeded",
        # Rows and lag of the last report stay in the status.
    )
    assert (found["rows"], found["lag"]) == (12, 0)
    assert found["lastSuccessfulTime"]


async def test_deleting_an_export_deletes_its_job(world: ClusterWorld) -> None:
    await start_export(world)
    await jobs.run(world, "x-1", "", phase="Pending", podIPs=[])
    await world.delete(EXPORT, "x")
    await world.until(lambda: world.is_deleted(JOB, "x-1"), "its Job is collected")


async def test_cause_that_keeps_a_pod_from_running_is_reported(world: ClusterWorld) -> None:
    await start_export(world)
    # The reason that a kubelet reports for a missing image.
    waits = {"reason": "ErrImageNeverPull", "message": "image is not present"}
    starting = {
        "name": "export",
        "image": jobs.IMAGE,
        "imageID": "",
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": waits},
    }
    await jobs.run(world, "x-1", "", phase="Pending", podIPs=[], containerStatuses=[starting])
    await world.until(
        lambda: _ready_message_has(world, "ErrImageNeverPull: image is not present"),
        "why there is no pod",
    )


async def _ready_message_has(world: ClusterWorld, text: str) -> bool:
    found = await world.condition(EXPORT, "x", "Ready", "False")
    return text in found["message"]


async def test_job_of_another_owner_with_the_same_name_is_left_alone(world: ClusterWorld) -> None:
    await world.create_cluster()
    # A user's Job with the name that run 1 would have.
    container = {"name": "c", "image": "i"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    labels = {"tidemark.dev/export": "x"}
    foreign_job = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "x-1", "labels": labels},
        "spec": {"template": {"spec": pod}},
    }
    await world.api.create(JOB, world.namespace, foreign_job)
    operator = await jobs.start_operator(world)
    await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await jobs.create_export(world)
    await world.condition(EXPORT, "x", "Ready", "False", "JobStarting")
    # The operator neither adopted nor deleted it.
    assert "ownerReferences" not in (await world.get(JOB, "x-1"))["metadata"]
    await world.api.delete(JOB, world.namespace, "x-1", propagation="Background")
    # Once the user has deleted it, the operator creates its own.
    await world.until(lambda: _has_owner(world), "the Job of the Export", LOADED)


async def _has_owner(world: ClusterWorld) -> bool:
    if await world.is_deleted(JOB, "x-1"):
        return False
    return "ownerReferences" in (await world.get(JOB, "x-1"))["metadata"]


async def test_export_job_runs_as_a_process_without_a_kubelet(
    world: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A missing Java is the reason that the job process itself reports."""
    # The job process starts without a usable Java installation.
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    await world.create_cluster()
    policy = {"spec": {"exports": {"warehouses": ["/"]}}}
    await world.api.merge_patch(CLUSTER, world.namespace, "demo", policy)
    operator = world.operator(exports=tmp_path / "exports")
    # A forked operator would not see the changed environment.
    operator.executed = True  # with this environment
    await operator.start()
    await world.start_broker(1, operator)
    await world.create_topic("t", replicas=1)
    await jobs.create_export(world, table={"catalogSecrets": [CATALOG_TOKEN]})
    condition = await world.condition(EXPORT, "x", "Stalled", "True", "SecretNotOffered")
    # Secrets have to be offered to Exports by an annotation, otherwise any Secret could be read.
    assert "Secret catalog does not exist or is not offered to Export" in condition["message"]
    meta = {"name": "catalog", "annotations": {OFFERED_ANNOTATION: "Export"}}
    body = {"metadata": meta, "stringData": {"token": "very-secret"}}
    await world.api.create(SECRET, world.namespace, body)
    await world.annotate(EXPORT, "x", touched="1")
    # The Secret is offered now, so the job starts, and fails for lack of Java.
    condition = await world.condition(EXPORT, "x", "Stalled", "True", "JobFailed")
    assert "nowhere, where there is no bin/java" in condition["message"]
    assert await world.is_deleted(JOB, "x-1")
    folder = tmp_path / "exports" / "x"
    assert "JAVA_HOME is" in (folder / "log").read_text()
    # The job's secrets are deleted with its process.
    assert not list(folder.glob("secrets-*"))
    await operator.stop()
