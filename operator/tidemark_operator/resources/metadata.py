"""Fields of ``metadata`` that reconcilers read; all others are ignored."""

import copy
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, Self

from pydantic import AwareDatetime, Field, ValidationError

from tidemark_operator.resources.schema import ApiModel

#: pydantic's error type for an unknown field.
_UNKNOWN_FIELD = "extra_forbidden"


class InvalidResource(ValueError):
    """Object that this version cannot read, because its definition is of another version."""


class ObjectMeta(ApiModel):
    """Object metadata as far as the operator reads it."""

    name: str = ""
    namespace: str = ""
    uid: uuid.UUID | None = None
    generation: int = 0
    creation_timestamp: AwareDatetime | None = None
    deletion_timestamp: AwareDatetime | None = None
    annotations: dict[str, str] = Field(default_factory=dict)
    finalizers: tuple[str, ...] = ()

    @property
    def key(self) -> str:
        """``namespace/name``, by which queues and caches identify the object."""
        return f"{self.namespace}/{self.name}"

    @property
    def is_deleting(self) -> bool:
        """Whether the deletion was requested; finalizers hold the object."""
        return self.deletion_timestamp is not None


class Resource(ApiModel):
    """Complete object of the API."""

    api_version: str = ""
    kind: str = ""
    metadata: ObjectMeta = Field(default_factory=ObjectMeta)

    @classmethod
    def parse(cls, obj: Mapping[str, Any]) -> Self:
        """Return an object from the API server; raises InvalidResource with the field's path."""
        try:
            return cls.model_validate(obj)
        except ValidationError as error:
            name = (obj.get("metadata") or {}).get("name", "?")
            raise InvalidResource(f"{cls.__name__} {name}: {_problems(error)}") from error

    @classmethod
    def known_part(cls, obj: dict[str, Any]) -> dict[str, Any]:
        """Return an object without the spec fields that only a newer version of the CRD defines.

        An object without such fields is returned itself. After a rollback, an older version
        continues with the known fields.
        """
        try:
            cls.model_validate(obj)
        except ValidationError as error:
            unknown = [item["loc"] for item in error.errors() if item["type"] == _UNKNOWN_FIELD]
            # The store shares its objects, so they are never changed in place.
            known = copy.deepcopy(obj)
            for path in unknown:
                _drop(known, path)
            return known if unknown else obj
        return obj


def _drop(part: Any, path: Sequence[int | str]) -> None:
    """Delete the field at a path; a path that leads nowhere changes nothing."""
    for step in path[:-1]:
        try:
            part = part[step]
        except (LookupError, TypeError):
            return
    if isinstance(part, dict):
        part.pop(path[-1], None)


def _problems(error: ValidationError) -> str:
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors()
    )
