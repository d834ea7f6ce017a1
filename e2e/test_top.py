"""``tidemark top`` and ``kubectl tidemark`` on a running cluster: once, as a page, and what a list
of the API server and a watch of it bring."""

import os
import re
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from confluent_kafka import Producer

from e2e.commands import run
from tests.conformance.local_cluster import RunningCluster, wait
from tidemark_cli.top.command import look
from tidemark_cli.top.object_index import TOPIC, ObjectIndex
from tidemark_cli.top.pages import Bar, View
from tidemark_cli.top.query import Query
from tidemark_cli.top.ranges import RangePlace
from tidemark_cli.top.reader import ObjectReader
from tidemark_devcluster.controlplane.programs import run_kubectl
from tidemark_kube.client import GONE, KubeClient, KubeRequestError
from tidemark_kube.transport import ApiRequest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
PLUGIN = f"""#!/bin/sh
exec {sys.executable} -c "from tidemark_cli.main import plugin; plugin()" "$@"
"""
RECORDS = 4000  # 4 MB: three closed segments of the smallest size that there is


@pytest.fixture
def topic(local_cluster: RunningCluster) -> Iterator[str]:
    """One partition whose closed segments are in the tier, and the last of them on disks, too."""
    name = local_cluster.new_topic(
        replicationFactor=2,
        config={"segment.bytes": "1048576", "retention.ms": "-1"},
        tiering={"enabled": True, "localRetention": {"size": "1Mi"}},
    )
    producer = Producer({"bootstrap.servers": local_cluster.bootstrap, "acks": "all"})
    for number in range(RECORDS):
        producer.produce(name, number.to_bytes(4, "big") * 256, partition=0)
    assert producer.flush(60) == 0
    yield name
    local_cluster.kube.delete("Topic", name)
    wait(lambda: local_cluster.kube.get("Topic", name) is None, f"{name} to be deleted")


def places(view: View) -> list[RangePlace]:
    """Return the replicas of the only partition."""
    (table,) = view.partitions
    bar = table.rows[0][-1]
    return [range_.place for range_ in bar.ranges] if isinstance(bar, Bar) else []


@pytest.mark.slow
def test_top_shows_where_offsets_are_stored_and_which_replicas_lag(
    local_cluster: RunningCluster, topic: str, tmp_path: Path
) -> None:
    kube = local_cluster.kube

    def view() -> View:
        return look(kube, Query(pattern=topic))

    wait(lambda: RangePlace.REMOTE in places(view()), "records to be in the tier alone")
    wait(lambda: re.fullmatch(r"\d:0", str(view().partitions[0].rows[0][3])), "no lag")
    found = view()
    assert places(found)[-1] is RangePlace.LOCAL
    assert found.partitions[0].rows[0][4] == f"0 to {RECORDS:,}"
    assert found.problems == ()
    assert {row[2] for row in found.brokers.rows} == {"True"}

    folder = local_cluster.local.layout.root
    said = run(folder, "top", topic)  # a pipe is no terminal, so top prints once
    assert "1 of " in said
    assert "░" in said
    assert f"0 to {RECORDS:,}" in said
    page = tmp_path / "page.html"
    run(folder, "top", topic, "--html", str(page))
    assert '<i class="remote"' in page.read_text("utf-8")


@pytest.mark.slow
def test_kubectl_finds_its_plugin(
    local_cluster: RunningCluster, topic: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A program of that name on the PATH; the package brings one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert project["scripts"]["kubectl-tidemark"] == "tidemark_cli.main:plugin"
    # kubectl finds plugins by name on the PATH.
    plugin = tmp_path / "kubectl-tidemark"
    plugin.write_text(PLUGIN)
    plugin.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("COLUMNS", "200")
    for command in (["top", topic, "--once"], ["status", topic]):
        done = run_kubectl(["tidemark", *command], kubeconfig=local_cluster.local.kubeconfig)
        assert done.returncode == 0, done.stderr
        assert topic in done.stdout
    done = run_kubectl(
        # The plugin gets kubectl's own flags, such as an unknown context.
        ["tidemark", "top", "--context", "none"],
        kubeconfig=local_cluster.local.kubeconfig,
    )
    assert done.returncode == 1
    assert "has no context 'none'" in done.stderr


class Counted(KubeClient):
    """Counter of requests to the API server."""

    calls: ClassVar[Counter[str]] = Counter()

    def _send(self, request: ApiRequest) -> bytes:
        self.calls["watch" if "watch" in dict(request.query) else "list"] += 1
        return super()._send(request)


@pytest.mark.slow
def test_objects_are_listed_page_by_page_and_then_watched(
    local_cluster: RunningCluster, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = local_cluster.local
    kube = Counted(local.kubeconfig, local.settings.namespace)
    there = len(kube.objects("Topic"))
    pages = list(kube.pages("Topic", limit=1))
    assert [len(page.objects) for page in pages] == [1] * there

    object_index, reader = ObjectIndex(), ObjectReader(kube, TOPIC)
    for batch in reader.read(1):
        batch.apply_to(object_index)
    assert len(object_index.lines) == there
    kube.calls.clear()
    other = local_cluster.new_topic()
    for batch in reader.read(1):
        batch.apply_to(object_index)
    assert object_index.lines[other].ready == "True"
    kube.delete("Topic", other)
    wait(lambda: kube.get("Topic", other) is None, "the topic to be deleted")
    kube.calls.clear()
    for batch in reader.read(1):
        batch.apply_to(object_index)
    assert other not in object_index.lines
    assert kube.calls == {"watch": 1}

    # A resource version that the API server no longer has: the client lists everything again and
    # reports nothing.
    with pytest.raises(KubeRequestError) as caught:
        kube.changes("Topic", "1", 1)
    assert caught.value.status == GONE
    monkeypatch.setattr(reader, "_version", "1")
    assert list(reader.read(1)) == []
    assert [batch.problem for batch in reader.read(1)] == ["", ""]
    kube.close()
