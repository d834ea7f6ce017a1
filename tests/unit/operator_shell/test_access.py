"""Several threads of one operator load the API server's configuration at the same time."""

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
    """Write a kubeconfig whose certificate is new, so that no cache has it."""
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


def test_concurrent_threads_read_a_complete_certificate_file(tmp_path: Path) -> None:
    begin = threading.Barrier(THREADS)

    def size_of_certificate(path: Path) -> int:
        # All threads start at one moment: the client library writes the certificate to a shared
        # file.
        begin.wait(10)
        found = asyncio.run(KubernetesAccess(path).configuration())
        return Path(str(found.ssl_ca_cert)).stat().st_size

    with ThreadPoolExecutor(THREADS) as pool:
        for number in range(ROUNDS):
            path = kubeconfig(tmp_path, number)
            sizes = set(pool.map(size_of_certificate, [path] * THREADS))
            # A truncated file would have another size in at least one thread.
            assert sizes == {len(b"%d " % number) + LARGE}
