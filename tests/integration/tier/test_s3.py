"""The S3 store on a real MinIO: what is S3's own. The port's rules: ``test_bucket_stores``."""

import contextlib
import socket
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from minio import Minio

from tidemark.tier.stores.objects import PreconditionFailed, Version
from tidemark.tier.stores.s3 import S3Store
from tidemark.tier.stores.s3_config import S3Config


@pytest.fixture
def config(minio: Any) -> S3Config:
    """Configuration with two fresh buckets."""
    address = urlsplit(minio.endpoint).netloc
    client = Minio(address, access_key=minio.access_key, secret_key=minio.secret_key, secure=False)
    buckets = tuple(f"tier-{uuid.uuid4().hex[:12]}" for _ in range(2))
    for bucket in buckets:
        client.make_bucket(bucket)
    return S3Config(
        endpoint=minio.endpoint,
        buckets=buckets,
        access_key_id=minio.access_key,
        secret_access_key=minio.secret_key,
        prefix="some/prefix",
    )


@pytest.fixture
def store(config: S3Config) -> S3Store:
    return S3Store(config)


def test_invalid_version_is_a_conflict(store: S3Store) -> None:
    store.put("h/1", b"one")
    with pytest.raises(PreconditionFailed):
        store.replace("h/1", b"two", Version('"nonsense"'))


def test_equal_bodies_have_equal_versions(store: S3Store) -> None:
    assert store.create("h/1", b"one") == store.create("h/2", b"one")


@contextlib.contextmanager
def serving(answer: Callable[[socket.socket], None]) -> Iterator[str]:
    """Run a server that passes each connection to ``answer`` in a thread of its own."""
    threads: list[threading.Thread] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    # Shutting the listener down ends accept with an error.
                    return
                threads.append(threading.Thread(target=answer, args=(connection,)))
                threads[-1].start()

        acceptor = threading.Thread(target=accept)
        acceptor.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            acceptor.join(10)
            for thread in threads:
                thread.join(10)
