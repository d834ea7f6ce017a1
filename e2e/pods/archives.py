"""An image of one static program, written as a docker archive without any tool for images."""

import hashlib
import io
import json
import platform
import tarfile
from pathlib import Path

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def of_program(archive: Path, image: str, program: Path) -> Path:
    """``archive``, an image ``image`` that runs ``program`` and has nothing else in it."""
    layer = _layer(program)
    machine = platform.machine()
    # The user is the one of the chart's pods, and no root.
    config = {
        "architecture": MACHINES.get(machine, machine),
        "os": "linux",
        "config": {"Entrypoint": [f"/{program.name}"], "User": "65535:65535"},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{_digest(layer)}"]},
        "history": [{"created_by": "e2e"}],
    }
    body = json.dumps(config).encode()
    name = f"{_digest(body)}.json"
    manifest = [{"Config": name, "RepoTags": [image], "Layers": ["layer.tar"]}]
    parts = {name: body, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}
    with tarfile.open(archive, "w") as file:
        for path, data in parts.items():
            _add(file, path, data, 0o644)
    return archive


def _layer(program: Path) -> bytes:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as file:
        _add(file, program.name, program.read_bytes(), 0o755)
    return data.getvalue()


def _add(file: tarfile.TarFile, name: str, data: bytes, mode: int) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    file.addfile(entry, io.BytesIO(data))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def layer_sizes(archive: Path) -> list[int]:
    """Bytes of each layer of a docker archive's image, from the base up."""
    with tarfile.open(archive) as file:
        manifest = file.extractfile("manifest.json")
        assert manifest is not None
        (image,) = json.load(manifest)
        return [file.getmember(name).size for name in image["Layers"]]
