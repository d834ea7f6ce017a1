"""``tidemark spark usage`` on a directory: what it prints, writes and refuses."""

import json
from pathlib import Path

from typer.testing import CliRunner

from tests.unit.tier.conftest import TOPIC, TierPartition
from tidemark.tier.identity import ensure_identity
from tidemark.tier.metadata import transitions
from tidemark.tier.metadata.head import Claim
from tidemark.tier.metadata.layout import head_key
from tidemark.tier.metadata.manifest import ManifestStore
from tidemark.tier.metadata.topics import TopicCatalog, TopicObject
from tidemark.tier.segments.remote_storage_manager import encode_custom_metadata
from tidemark.tier.stores.directory import DirectoryStore
from tidemark_cli.main import app


def tier_of_one_segment(path: Path, *, name: str = TOPIC) -> Path:
    """Create a tier with one segment of 100 bytes, 130 with its indexes."""
    path.mkdir(exist_ok=True)
    store, place = DirectoryStore(path), TierPartition()
    ensure_identity(store, "c", "")
    TopicCatalog(store).put(
        TopicObject(topic_id=place.topic_id, name=name, cluster_id="c", partitions=4)
    )
    manifests, entry, by = ManifestStore(store), place.segment(0, 9), Claim(1, 0)
    loaded = manifests.create(place.head())
    loaded = manifests.commit(loaded, lambda head: transitions.start_copy(head, by, entry))
    custom = encode_custom_metadata("", 130)
    manifests.commit(loaded, lambda head: transitions.finish_copy(head, by, entry, custom))
    store.put(entry.log_key, bytes(100))
    store.put(entry.aux_key, bytes(30))
    return path


def run(*arguments: str) -> tuple[int, str]:
    """Return the exit code, and the output as one line."""
    result = CliRunner().invoke(app, ["spark", "usage", *arguments])
    return result.exit_code, " ".join(result.output.split())


def test_tables_show_existing_objects_and_planned_deletions(tmp_path: Path) -> None:
    path = tier_of_one_segment(tmp_path)
    code, output = run("--path", str(path), "--retention-ms", "0", "--by", "partition, day")
    assert code == 0, output
    # 130 bytes are the log of 100 and its indexes.
    assert "│ flights │ 3 │ 1970-01-01 │ 1 │ 100 │ 130 │ 0 │" in output
    assert "│ flights │ │ 2 │ 130 │ 0 │ 0 │" in output
    assert "│ (no topic) │ │ 0 │ 0 │ 0 │ 0 │" in output
    assert "│ would be freed │ retention │ disable-delete │ disable-retain │" in output.replace(
        "┃", "│"
    )
    assert "│ flights │ 130 │ 130 │ 0 │" in output


def test_json_output_is_nothing_but_json(tmp_path: Path) -> None:
    path, prom = tier_of_one_segment(tmp_path / "tier"), tmp_path / "usage.prom"
    options = ["--path", str(path), TOPIC, TOPIC, "--json", "-", "--prometheus", str(prom)]
    code, output = run(*options)
    found = json.loads(output)
    assert (code, len(found["topics"]), found["elsewhere"]) == (0, 1, None)
    assert found["topics"][0]["rows"][0]["storedBytes"] == 130
    assert 'tidemark_usage_stored_bytes{bucket="",topic="flights"} 130.0' in prom.read_text()
    assert run(*options[:3], "--json", str(tmp_path / "usage.json"))[0] == 0
    assert json.loads((tmp_path / "usage.json").read_text())["topics"][0]["name"] == TOPIC
    # Files are written under a hidden name first, and then renamed.
    assert not list(tmp_path.glob(".*"))


def test_invalid_options_are_refused_with_the_valid_ones(tmp_path: Path) -> None:
    path = str(tier_of_one_segment(tmp_path))
    assert run("--path", path, "--by", "week") == (
        1,
        "error: --by week is unknown: use partition, bucket, day, separated by commas",
    )
    assert run("--path", path, "photos")[0] == 1
    assert run("--path", path, "--retention-ms", "-2")[0] == 2
    code, output = run("--path", str(tmp_path / "elsewhere"))
    assert code == 1, output


def test_incomplete_figures_have_an_exit_code_of_their_own(tmp_path: Path) -> None:
    path = tier_of_one_segment(tmp_path)
    (path / head_key(TierPartition().topic_id, 3)).write_text("torn")
    code, output = run("--path", str(path))
    assert code == 3
    assert f"not included: {head_key(TierPartition().topic_id, 3)}" in output


def test_names_with_control_characters_are_shown_as_text(tmp_path: Path) -> None:
    path = tier_of_one_segment(tmp_path, name="[red]a\x1b[31mb")
    code, output = run("--path", str(path))
    assert (code, "[red]a?[31mb" in output, "\x1b" in output) == (0, True, False), output
