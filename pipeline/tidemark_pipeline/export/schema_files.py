"""Schema files, whose format follows from the name's suffix."""

from pathlib import Path

from tidemark_pipeline.export.export_progress import ExportError

AVRO, PROTO, DESCRIPTORS = (".avsc",), (".proto",), (".desc", ".protoset", ".binpb", ".pb")
_BYTES_MAX = 4 * 1024 * 1024


def check_file(name: str) -> Path:
    """Return the path of a schema file.

    Raises :class:`ExportError` if the suffix is unknown, the file is missing, or it exceeds 4 MiB.
    """
    path = Path(name)
    if path.suffix not in AVRO + PROTO + DESCRIPTORS:
        raise ExportError(
            f"{name}: its name says no format: {', '.join(AVRO)} is Avro, {', '.join(PROTO)} and "
            f"{', '.join(DESCRIPTORS)} (protoc --include_imports --descriptor_set_out) Protobuf"
        )
    if not path.is_file():
        raise ExportError(f"{name}: there is no such file")
    # The parsed schema is sent to every worker, so its size is bounded.
    if path.stat().st_size > _BYTES_MAX:
        raise ExportError(f"{name}: a schema has {_BYTES_MAX:,} bytes at most")
    return path
