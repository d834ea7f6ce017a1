"""Configuration of a directory as remote store."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from tidemark.tier.config_fields import InvalidConfig, required_text
from tidemark.tier.endpoint import S3Endpoint


@dataclass(frozen=True, slots=True)
class FilesystemConfig:
    """Directory as remote store. ``path``: absolute, the same on every broker."""

    kind: ClassVar[str] = "filesystem"
    location_names: ClassVar[tuple[str, ...]] = ("path",)
    credential_names: ClassVar[tuple[str, ...]] = ()
    instruction_names: ClassVar[tuple[str, ...]] = ()
    option: ClassVar[tuple[str, str]] = ("path", "a directory")

    path: Path

    @classmethod
    def parse(cls, fields: Mapping[str, object]) -> Self:
        """Parse the fields of the configuration. Raises InvalidConfig."""
        path = Path(required_text(fields, cls.kind, "path"))
        if not path.is_absolute():
            raise InvalidConfig("remoteStorage: filesystem.path must be absolute")
        return cls(path)

    @classmethod
    def from_options(cls, given: Mapping[str, str], environment: Mapping[str, str]) -> Self:
        """Parse the options of a job. Raises InvalidConfig."""
        del environment
        return cls.parse(given)

    def endpoints(self) -> tuple[S3Endpoint, ...]:
        """Return no endpoints: a directory has none."""
        return ()

    def fields(self) -> dict[str, object]:
        """Return the fields that ``parse`` reads."""
        return {"path": str(self.path)}

    @staticmethod
    def moved(old: Mapping[str, object], new: Mapping[str, object]) -> str:
        """Return why the location ``new`` is another store than ``old``; "" if it is the same."""
        return "" if old["path"] == new["path"] else "filesystem.path changed"
