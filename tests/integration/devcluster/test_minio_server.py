"""MinIO as tests and the demo use it."""

import io
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from minio import Minio

from tidemark_devcluster.controlplane.minio import MinioServer

pytestmark = pytest.mark.full


def client(server: MinioServer) -> Minio:
    return Minio(
        server.endpoint.removeprefix("http://"),
        access_key=server.access_key,
        secret_key=server.secret_key,
        secure=False,
    )


def test_minio_serves_at_once(minio: MinioServer) -> None:
    store = client(minio)
    store.make_bucket("at-once")
    store.put_object("at-once", "key", io.BytesIO(b"value"), 5)
    response = store.get_object("at-once", "key")
    try:
        assert response.read() == b"value"
    finally:
        response.close()
        response.release_conn()


def test_minio_restart_keeps_address_keys_and_data(tmp_path: Path) -> None:
    with MinioServer.start(tmp_path) as first:
        client(first).make_bucket("kept")
    with MinioServer.start(tmp_path) as second:
        assert (second.endpoint, second.access_key) == (first.endpoint, first.access_key)
        assert client(second).bucket_exists("kept")
    # The record has the keys, so only its owner may read it.
    assert (tmp_path / "server.json").stat().st_mode & 0o777 == 0o600


def test_minio_ends_when_its_starter_is_killed(tmp_path: Path) -> None:
    code = (
        "import time; from pathlib import Path\n"
        "from tidemark_devcluster.controlplane.minio import MinioServer\n"
        f"server = MinioServer.start(Path({str(tmp_path)!r}))\n"
        "print(server.pid, flush=True); time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as child:
        try:
            assert child.stdout is not None
            supervisor = int(child.stdout.readline())
            tasks = Path(f"/proc/{supervisor}/task/{supervisor}/children")
            # The supervisor and MinIO itself.
            pids = [supervisor, *map(int, tasks.read_text().split())]
            assert len(pids) == 2
        finally:
            child.kill()
    deadline = time.monotonic() + 30
    while any(runs(pid) for pid in pids):
        assert time.monotonic() < deadline
        time.sleep(0.02)


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        # A zombie has ended; its parent has not read its status yet.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
