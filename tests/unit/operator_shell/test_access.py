"""Several threads of one operator find their way to the API server at the same time."""

import asyncio
import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidemark_operator.kube.access import KubernetesAccess

THREADS = 4
ROUNDS = 25
LARGE = 2_000  # bytes


def kubeconfig(folder: Path, number: int) -> Path:
    """A file with a certificate that no earlier one has, so that none was loaded before."""
    certificate = base64.b64encode(b"%d " % number + b"c" * LARGE).decode()
    path = folder / f"kubeconfig-{number}"
    cluster = {"server": "https://127.0.0.1:1", "certificate-authority-data": certificate}
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "it",
                "clusters": [{"name": "it", "cluster": cluster}],
                "users": [{"name": "it", "user": {"token": "t"}}],
                "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            }
        )
    )
    return path


def test_a_certificate_is_complete_whichever_thread_requests_it_first(tmp_path: Path) -> None:
    begin = threading.Barrier(THREADS)

    def size_of_certificate(path: Path) -> int:
        begin.wait(10)
        found = asyncio.run(KubernetesAccess(path).configuration())
        return Path(str(found.ssl_ca_cert)).stat().st_size

    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(ROUNDS):
            path = kubeconfig(tmp_path, number)
            sizes = set(pool.map(size_of_certificate, [path] * THREADS))
            assert sizes == {len(b"%d " % number) + LARGE}
