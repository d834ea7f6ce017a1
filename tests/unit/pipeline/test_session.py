"""Configuration of Spark sessions."""

import pytest
from pyspark import SparkContext

from tidemark_pipeline import session

_ENABLED = "spark.python.unix.domain.socket.enabled"


@pytest.mark.parametrize(
    ("folder", "is_used"),
    [
        ("/" + "a" * 60, True),
        ("/" + "a" * 61, False),
        ("/" + "é" * 30, True),
        ("/" + "é" * 31, False),
    ],
)
def test_unix_sockets_need_a_short_path_in_bytes(
    monkeypatch: pytest.MonkeyPatch, folder: str, is_used: bool
) -> None:
    monkeypatch.setattr(session, "_jvm_folder", lambda: folder)
    # An earlier test of this process may have started a JVM, which then has the configuration.
    monkeypatch.setattr(SparkContext, "_jvm", None)
    conf = session._settings("x", 1, None, "/scratch")
    assert (conf.get(_ENABLED, None) == "true") is is_used
    # Executors of a cluster would create the sockets in a shared folder.
    assert conf.get("spark.python.unix.domain.socket.dir", None) == (folder if is_used else None)
    assert session._settings("x", 1, "spark://h:1", "/scratch").get(_ENABLED, None) is None
