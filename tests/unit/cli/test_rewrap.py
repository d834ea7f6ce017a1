"""``tidemark rewrap`` on a directory, as docs/how-to/compress-and-encrypt.md describes it."""

from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.tier.conftest import TierPartition
from tidemark.tier.identity import ensure_identity
from tidemark.tier.segments.auxiliary import Aux
from tidemark.tier.segments.remote_storage_manager import RemoteStorageManager, SegmentData
from tidemark.tier.stores.directory import DirectoryStore
from tidemark.tier.stores.key_ring import KeyRing
from tidemark_cli.main import app
from tidemark_cli.tier import stores
from tidemark_devcluster import tier

OLD, NEW = (f"k{number}: {'A' * 41}{number}A=\n" for number in (1, 2))


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code, and the output as one line."""
    result = CliRunner().invoke(app, ["rewrap", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_keys_are_replaced_and_counted(tmp_path: Path) -> None:
    folder, keys, log = tmp_path / "tier", tmp_path / "encryptionKeys", tmp_path / "log"
    folder.mkdir()
    log.write_bytes(b"records")
    store = DirectoryStore(folder)
    ensure_identity(store, "c", "")
    aux = Aux(offset_index=b"", time_index=b"", leader_epochs=b"", producer_snapshot=b"")
    RemoteStorageManager({"": store}, KeyRing.parse(OLD)).copy_segment(
        TierPartition().segment(0, 9, size_bytes=7), SegmentData(log, 7, aux)
    )
    code, output = run("--path", str(folder), "--dry-run")
    assert (code, "1 segment: key k1" in output) == (0, True), output
    # Without the old key nothing is changed, and the message names it.
    keys.write_text(NEW)
    code, output = run("--path", str(folder), "--encryption-keys", str(keys))
    assert (code, "'k1'" in output) == (1, True), output
    keys.write_text(NEW + OLD)
    code, output = run("--path", str(folder), "--encryption-keys", str(keys))
    assert code == 0, output
    assert "1 segment rewrapped, 0 bytes of logs read or written" in output
    assert "1 segment: key k2, active" in output


def test_unusable_keys_are_refused(tmp_path: Path) -> None:
    ensure_identity(DirectoryStore(tmp_path), "c", "")
    code, output = run("--path", str(tmp_path))
    assert (code, "Name the file with the keys" in " ".join(output.split())) == (1, True), output
    missing = str(tmp_path / "none")
    code, output = run("--path", str(tmp_path), "--encryption-keys", missing)
    # The message is wrapped where the path is long.
    assert (code, "cannot be read" in " ".join(output.split())) == (1, True), output


def test_keys_alone_are_those_of_the_local_clusters_tier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tier").mkdir()
    ensure_identity(DirectoryStore(tmp_path / "tier"), "c", "")
    options = {"topic": "-", "path": str(tmp_path / "tier")}
    monkeypatch.setattr(stores, "open_cluster", lambda _: None)
    monkeypatch.setattr(tier, "tier_options", lambda *_: options)
    keys = tmp_path / "encryptionKeys"
    keys.write_text(NEW)
    code, output = run("--encryption-keys", str(keys))
    assert (code, "0 segments rewrapped" in output) == (0, True), output
