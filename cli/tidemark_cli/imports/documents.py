"""Read Kubernetes objects (YAML or JSON) from files, folders and standard input."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

STDIN = "-"
SUFFIXES = (".yaml", ".yml", ".json")
FILE_BYTES_MAX = 64 * 1024 * 1024
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DocumentError(ValueError):
    """File that cannot be read or is not YAML; the message names the file and the position."""


@dataclass(frozen=True, slots=True)
class Document:
    """Object with a readable source, such as ``topics.yaml, KafkaTopic orders``."""

    source: str
    body: Mapping[str, Any]


def read(paths: Sequence[str]) -> list[Document]:
    """Return all objects of files, folders and standard input (``-``).

    Folders are searched recursively for YAML and JSON files; hidden ones are skipped. Items of a
    List are separate objects. Raises :class:`DocumentError`.
    """
    return [
        document for path in paths for name, text in _texts(path) for document in parsed(name, text)
    ]


def parsed(name: str, text: str) -> Iterator[Document]:
    """Yield the objects of one text. Raises :class:`DocumentError`."""
    try:
        bodies = list(yaml.load_all(text, Loader=_LOADER))
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise DocumentError(f"{name} is not YAML: {_one_line(error)}") from error
    for body in _objects(name, bodies):
        yield Document(_source(name, body), body)


def _objects(name: str, bodies: Iterable[object]) -> Iterator[Mapping[str, Any]]:
    for body in bodies:
        if body is None:  # an empty document between two --- lines
            continue
        if not isinstance(body, Mapping):
            raise DocumentError(
                f"{name} contains a document that is not an object: {str(body)[:60]!r}"
            )
        items = body.get("items")
        if str(body.get("kind", "")).endswith("List") and isinstance(items, list):
            yield from _objects(name, items)
        else:
            yield body


def _source(name: str, body: Mapping[str, Any]) -> str:
    meta = body.get("metadata")
    called = meta.get("name", "") if isinstance(meta, Mapping) else ""
    return f"{name}, {body.get('kind', 'an object')} {called}".rstrip()


def _texts(path: str) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file to import.

    ``path``: a file, a folder with files, or ``-`` for standard input. Raises
    :class:`DocumentError`.
    """
    if path == STDIN:
        yield (
            "standard input",
            _decoded("standard input", sys.stdin.buffer.read(FILE_BYTES_MAX + 1)),
        )
        return
    for file in _files(Path(path)):
        try:
            with file.open("rb") as stream:
                data = stream.read(FILE_BYTES_MAX + 1)
        except OSError as error:
            raise DocumentError(f"{file} cannot be read: {error.strerror}") from error
        yield str(file), _decoded(str(file), data)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    files = sorted(
        file
        for file in path.rglob("*")
        if file.suffix in SUFFIXES
        and file.is_file()
        and not any(part.startswith(".") for part in file.relative_to(path).parts)
    )
    if not files:
        raise DocumentError(f"{path} contains no file that ends with {', '.join(SUFFIXES)}")
    return files


def _decoded(name: str, data: bytes) -> str:
    if len(data) > FILE_BYTES_MAX:
        raise DocumentError(f"{name} is larger than {FILE_BYTES_MAX >> 20} MiB: split it")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"{name} is not UTF-8 text") from error


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split())
