"""Jobs of Exports as processes of a local operator, with Secrets on the real API server."""

import asyncio
import dataclasses
import os
from pathlib import Path

import pytest

from tests.integration.operator import job_with_child
from tests.integration.operator.cluster_world import ClusterWorld
from tidemark.export_job import OptionPlace, Order
from tidemark_operator.controller.state.export_values import DesiredJob, JobPhase, SecretFile
from tidemark_operator.jobs import local
from tidemark_operator.jobs.local import LocalJobs
from tidemark_operator.kube.kinds import SECRET
from tidemark_operator.pods.export_job import ExportRunIdentity


async def test_late_end_of_a_run_leaves_secrets_of_the_next_one(
    world: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark's JVM may end after the process that started it, when the next run has begun."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    monkeypatch.setenv("LEFT_OPEN", str(fifo))
    monkeypatch.setattr(local, "PROGRAM", job_with_child.__name__)
    body = {"metadata": {"name": "keys"}, "stringData": {"encryptionKeys": "very-secret"}}
    await world.api.create(SECRET, world.namespace, body)
    file = SecretFile(place=OptionPlace.SOURCE, option="keys", secret="keys", key="encryptionKeys")
    desired = DesiredJob(order=Order(source={"topic": "t"}, table={}), files=(file,))
    jobs = LocalJobs(world.api, world.namespace, tmp_path / "exports")
    try:
        # The first run ends, and its child has its standard output open.
        others = asyncio.all_tasks()
        first = _run(world, 1)
        await jobs.start(first, desired)
        ends = asyncio.all_tasks() - others
        await world.until(lambda: _has_ended(jobs, first), "the first run ends")
        # The child ends while the second run needs its Secrets.
        await jobs.start(_run(world, 2), desired)
        assert len(_secrets(tmp_path)) == 1
        await asyncio.to_thread(fifo.write_bytes, b"")
        await asyncio.wait(ends)
        assert len(_secrets(tmp_path)) == 1
    finally:
        await jobs.close()


async def test_topics_of_a_selector_are_in_a_file_of_the_process(
    world: ClusterWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "PROGRAM", job_with_child.__name__)
    fifo = tmp_path / "fifo"
    # A later run of the program waits until it is stopped.
    (tmp_path / "fifo.started").touch()
    monkeypatch.setenv("LEFT_OPEN", str(fifo))
    desired = DesiredJob(order=Order(source={"subscribe": "a"}, table={}), topics=("a",))
    jobs = LocalJobs(world.api, world.namespace, tmp_path / "exports")
    run = _run(world, 1)
    try:
        # Without a process there is nothing to write.
        await jobs.follow(run, desired)
        await jobs.start(run, desired)
        (file,) = tmp_path.glob("exports/x/*/topics")
        assert file.read_text() == "a"
        await jobs.follow(run, dataclasses.replace(desired, topics=("a", "b")))
        assert file.read_text().split() == ["a", "b"]
        # The topics of another run are not those of this one.
        await jobs.follow(_run(world, 2), dataclasses.replace(desired, topics=("c",)))
        assert file.read_text().split() == ["a", "b"]
    finally:
        await jobs.close()


def _run(world: ClusterWorld, number: int) -> ExportRunIdentity:
    return ExportRunIdentity(
        name="x", namespace=world.namespace, uid="uid", cluster="demo", number=number
    )


async def _has_ended(jobs: LocalJobs, run: ExportRunIdentity) -> bool:
    return (await jobs.look(run)).phase is JobPhase.ENDED


def _secrets(folder: Path) -> list[Path]:
    files = [path for path in (folder / "exports" / "x").rglob("*") if path.is_file()]
    return [path for path in files if path.read_bytes() == b"very-secret"]
