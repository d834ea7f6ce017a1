"""The archive of a program suits a container runtime: names, digests and sizes match."""

import hashlib
import json
import tarfile
from pathlib import Path

from e2e.pods import archives


def test_an_archive_lists_its_contents(tmp_path: Path) -> None:
    program = tmp_path / "pause"
    program.write_bytes(b"#!" + bytes(1000))
    archive = archives.of_program(tmp_path / "a.tar", "e2e.example/pause:1", program)
    with tarfile.open(archive) as file:
        parts = {name: file.extractfile(name) for name in file.getnames()}
        read = {name: part.read() for name, part in parts.items() if part is not None}
    (image,) = json.loads(read["manifest.json"])
    assert image["RepoTags"] == ["e2e.example/pause:1"]
    config, (layer,) = image["Config"], image["Layers"]
    assert config == f"{hashlib.sha256(read[config]).hexdigest()}.json"
    configuration = json.loads(read[config])
    assert configuration["rootfs"]["diff_ids"] == [
        f"sha256:{hashlib.sha256(read[layer]).hexdigest()}"
    ]
    assert configuration["config"]["Entrypoint"] == ["/pause"]
    assert archives.layer_sizes(archive) == [len(read[layer])]
