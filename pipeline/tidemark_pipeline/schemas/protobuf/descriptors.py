"""A Protobuf schema as descriptors: from a descriptor set, or from the text of ``.proto`` files.

Google's own library reads descriptors and its own compiler makes them of text, in a process of its
own that ends after a time: text may be anybody's.
"""

import importlib
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path, PurePosixPath

from google.protobuf import descriptor_pb2
from google.protobuf.descriptor import Descriptor
from google.protobuf.descriptor_pool import Default as default_pool
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError

from tidemark_pipeline.schemas.values.schema_errors import SchemaRefused

SET_BYTES_MAX = 4 * 1024 * 1024
TEXT_BYTES_MAX = 1024 * 1024
_COMPILE_S = 60.0
_NAME = "schema.proto"
#: Where every compiler has them; they need not be in a set.
_WELL_KNOWN = "google/protobuf/"


@dataclass(frozen=True, slots=True)
class Messages:
    """``serialized``: a FileDescriptorSet, the file that is meant last."""

    serialized: bytes

    def pool(self) -> tuple[DescriptorPool, str]:
        """Its files, and the name of the one that is meant. Raises :class:`SchemaRefused`."""
        if len(self.serialized) > SET_BYTES_MAX:
            raise SchemaRefused(f"the descriptors have more than {SET_BYTES_MAX} bytes")
        try:
            found = descriptor_pb2.FileDescriptorSet.FromString(self.serialized)
        except DecodeError as error:
            raise SchemaRefused(f"no set of descriptors: {error}") from error
        if not found.file:
            raise SchemaRefused("no set of descriptors: there is no file in it")
        pool = DescriptorPool()
        known = {file.name: file for file in found.file}
        try:
            for name in known:
                _add(pool, name, known, set())
        except (TypeError, ValueError, KeyError, RecursionError) as error:
            raise SchemaRefused(f"the descriptors do not hold: {error}") from error
        return pool, found.file[-1].name


def _add(
    pool: DescriptorPool,
    name: str,
    known: Mapping[str, descriptor_pb2.FileDescriptorProto],
    done: set[str],
) -> None:
    """A file behind those that it imports."""
    if name in done:
        return
    done.add(name)
    file = known.get(name) or _well_known(name)
    for imported in file.dependency:
        _add(pool, imported, known, done)
    pool.Add(file)  # the same once more changes nothing


def _well_known(name: str) -> descriptor_pb2.FileDescriptorProto:
    if not name.startswith(_WELL_KNOWN) or ".." in name:
        raise KeyError(f"{name} is imported and not there (protoc --include_imports)")
    module = name.removesuffix(".proto").replace("/", ".") + "_pb2"
    try:  # each puts itself into the pool that is asked
        importlib.import_module(module)
    except ImportError as error:
        raise KeyError(f"{name} is imported and not there") from error
    file = descriptor_pb2.FileDescriptorProto()
    default_pool().FindFileByName(name).CopyToProto(file)
    return file


def by_name(messages: Messages, name: str = "") -> Descriptor:
    """A message by its full name, or by none: the one of the file. Raises
    :class:`SchemaRefused`."""
    pool, file = messages.pool()
    if name:
        try:
            return pool.FindMessageTypeByName(name)
        except KeyError as error:
            raise SchemaRefused(f"there is no message {name} among the descriptors") from error
    there = pool.FindFileByName(file).message_types_by_name
    if len(there) != 1:
        names = ", ".join(message.full_name for message in there.values()) or "none"
        raise SchemaRefused(f"name the message, of {names}")
    return next(iter(there.values()))


def by_indexes(messages: Messages, indexes: Sequence[int]) -> Descriptor:
    """A message by its place in the file, and within the one that it stands in. Raises
    :class:`SchemaRefused`."""
    pool, file = messages.pool()
    proto = descriptor_pb2.FileDescriptorProto()
    pool.FindFileByName(file).CopyToProto(proto)
    names = [proto.package] if proto.package else []
    level = proto.message_type
    for index in indexes:
        if not 0 <= index < len(level):
            raise SchemaRefused(f"the schema has no message {list(indexes)}")
        names.append(level[index].name)
        level = level[index].nested_type
    return pool.FindMessageTypeByName(".".join(names))


def compiled(text: str, imports: Mapping[str, str] | None = None) -> Messages:
    """Of the text of a file and of those that it imports, by the names that it has for them. Raises
    :class:`SchemaRefused`."""
    sources = {**(imports or {}), _NAME: text}
    if sum(len(text.encode()) for text in sources.values()) > TEXT_BYTES_MAX:
        raise SchemaRefused(f"the schema has more than {TEXT_BYTES_MAX} bytes")
    with tempfile.TemporaryDirectory(prefix="tidemark-proto-") as name:
        folder = Path(name)
        for file_name, source in sources.items():
            pure = PurePosixPath(file_name)
            if pure.is_absolute() or ".." in pure.parts:
                raise SchemaRefused(f"the schema imports {file_name!r}")
            place = folder / "files" / pure
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(source, encoding="utf-8")
        return _protoc(folder / "files", _NAME)


def compiled_file(path: Path) -> Messages:
    """Of a file, which may import those beside it and below. Raises :class:`SchemaRefused`."""
    return _protoc(path.resolve().parent, path.name)


def _protoc(folder: Path, name: str) -> Messages:
    with tempfile.TemporaryDirectory(prefix="tidemark-protoc-") as scratch:
        output = Path(scratch) / "set"
        command = [
            *(sys.executable, "-m", "grpc_tools.protoc", "--include_imports"),
            *(f"--proto_path={folder}", f"--proto_path={_includes()}"),
            *(f"--descriptor_set_out={output}", name),
        ]
        try:
            done = subprocess.run(
                command, capture_output=True, text=True, timeout=_COMPILE_S, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise SchemaRefused(f"protoc needs more than {_COMPILE_S:.0f} s for it") from error
        if done.returncode:
            why = " ".join(done.stderr.split())[:500]
            raise SchemaRefused(f"protoc refuses it: {why}")
        return Messages(output.read_bytes())


def _includes() -> str:
    return str(files("grpc_tools") / "_proto")
