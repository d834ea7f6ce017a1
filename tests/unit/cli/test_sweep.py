"""``tidemark sweep`` on a directory: what it shows, removes and refuses."""

import os
import time
import uuid
from pathlib import Path

from typer.testing import CliRunner

from tests.unit.tier.conftest import TierPartition
from tidemark.tier.identity import ensure_identity
from tidemark.tier.maintenance.sweep_lease import SweepLease
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.stores.directory import DirectoryStore
from tidemark_cli.main import app


def tier_with_an_orphan(path: Path) -> tuple[DirectoryStore, str]:
    store = DirectoryStore(path)
    ensure_identity(store, "c", "")
    ManifestStore(store).create(TierPartition().head())
    key = TierPartition().segment(0, 9).log_key
    store.put(key, b"12345")
    # A file that does not belong to Tidemark.
    store.put(f"data/photos/{uuid.UUID(int=1)}.jpeg", b"x")
    return store, key


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code, and the output as one line."""
    result = CliRunner().invoke(app, ["sweep", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_sweep_without_delete_only_shows_orphans(tmp_path: Path) -> None:
    store, key = tier_with_an_orphan(tmp_path)
    code, output = run("--path", str(tmp_path), "--older-than", "0")
    assert code == 0, output
    assert "1 object that no manifest names, 5 bytes" in output
    assert key in output
    assert "data/photos/ (1)" in output
    assert "tidemark sweep --delete" in output
    assert store.get(key).data == b"12345"


def test_sweep_removes_orphans_that_are_old_enough(tmp_path: Path) -> None:
    store, key = tier_with_an_orphan(tmp_path)
    # The object was written a moment ago.
    assert "1 too young to be removed" in run("--path", str(tmp_path), "--delete")[1]
    assert store.get(key)
    code, output = run("--path", str(tmp_path), "--delete", "--older-than", "0")
    assert (code, "1 removed" in output) == (0, True), output
    assert [info.key.split("/")[1] for info in store.list("data/")] == ["photos"]


def test_undecodable_file_name_is_shown(tmp_path: Path) -> None:
    tier_with_an_orphan(tmp_path)
    (tmp_path / "data" / os.fsdecode(b"\xff")).write_bytes(b"x")
    (tmp_path / "data" / os.fsdecode(b"\xfe")).mkdir()
    (tmp_path / "data" / os.fsdecode(b"\xfe") / "y").write_bytes(b"x")
    code, output = run("--path", str(tmp_path))
    assert (code, "data/\\udcfe/ (1)" in output) == (0, True), output


def test_sweep_by_a_broker_excludes_this_one(tmp_path: Path) -> None:
    store, _ = tier_with_an_orphan(tmp_path)
    # A broker has the lease, and sweeps at this moment.
    SweepLease(store, "broker 1", lambda: time.time_ns() // 1_000_000).take()
    code, output = run("--path", str(tmp_path), "--delete")
    assert (code, "broker 1 sweeps this store: wait for it" in output) == (1, True), output


def test_folder_without_a_tier_is_refused(tmp_path: Path) -> None:
    code, output = run("--path", str(tmp_path))
    assert (code, "no tier is there; check --path" in output) == (1, True), output
    assert not list(tmp_path.iterdir())
