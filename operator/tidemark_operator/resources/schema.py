"""Parts of CRDs that pydantic cannot express: CEL rules, list types, int-or-string, printer
columns.

The models are the one source of the CRDs, so every rule that the API server enforces is declared on
its class or field. pydantic's JSON schema contains them as ``x-kubernetes-*`` keys; ``crdgen`` only
inlines and orders the result.

The docstring below a field is its description in the CRD. It is read from the source when a CRD is
generated, because pydantic's ``use_attribute_docstrings`` parses every class at import.
"""

import ast
import dataclasses
import inspect
import itertools
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, GetJsonSchemaHandler
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from tidemark.configuration.values import INT32_MAX
from tidemark_operator.resources.names import CATEGORY, PLURALS

VALIDATIONS = "x-kubernetes-validations"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """CEL rule.

    A rule that names ``oldSelf`` is a transition rule: the API server runs it on updates only, and
    it must hold for an unchanged object. ``message_expression`` computes the message; ``message``
    is the fallback. ``field_path`` is relative to the place of the rule (``.spec.tiering``).
    ``reason`` is FieldValueInvalid unless set. With ``optional_old_self`` the rule runs on create
    as well, and ``oldSelf`` is an optional.
    """

    rule: str
    message: str
    message_expression: str | None = None
    field_path: str | None = None
    reason: str | None = None
    optional_old_self: bool | None = None

    def as_schema(self) -> dict[str, str | bool]:
        """Return the rule as an entry of ``x-kubernetes-validations``."""
        entries = {
            "rule": self.rule,
            "message": self.message,
            "messageExpression": self.message_expression,
            "fieldPath": self.field_path,
            "reason": self.reason,
            "optionalOldSelf": self.optional_old_self,
        }
        return {key: value for key, value in entries.items() if value is not None}


IMMUTABLE = "self == oldSelf"


class KubernetesSchema:
    """Annotation of a field: its CEL rules and schema keys that only Kubernetes has."""

    def __init__(self, *rules: Rule, **keys: object) -> None:
        self._rules = rules
        self._keys = keys

    def __get_pydantic_json_schema__(
        self, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = dict(handler(core_schema))
        schema.update(self._keys)
        return with_rules(schema, self._rules)


def with_rules(schema: JsonSchemaValue, rules: tuple[Rule, ...]) -> JsonSchemaValue:
    """Return the schema with the rules appended to its own."""
    if rules:
        schema[VALIDATIONS] = [*schema.get(VALIDATIONS, []), *(rule.as_schema() for rule in rules)]
    return schema


#: A list that is replaced as a whole: a map-list makes every status write more expensive.
ATOMIC: Mapping[str, object] = {"x-kubernetes-list-type": "atomic"}
#: A list without duplicates.
SET: Mapping[str, object] = {"x-kubernetes-list-type": "set"}


def keyed_by(field: str) -> Mapping[str, object]:
    """Return the keys of a list whose entries are identified by a field."""
    return {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [field]}


class ApiModel(BaseModel):
    """A part of an object: camelCase outside, snake_case inside, immutable, unknown fields dropped
    (a newer operator may have written them)."""

    model_config = ConfigDict(
        alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore"
    )
    rules: ClassVar[tuple[Rule, ...]] = ()

    @classmethod
    def __get_pydantic_json_schema__(
        cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        schema = handler.resolve_ref_schema(handler(core_schema))
        for name, text in _field_docstrings(cls).items():
            schema["properties"][cls.model_fields[name].alias]["description"] = text
        return with_rules(schema, cls.rules)

    def dump(self) -> dict[str, Any]:
        """The part as JSON-ready camelCase data, without what is unset."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


def _field_docstrings(model: type[ApiModel]) -> dict[str, str]:
    """Return the docstring below each field of a model, by the field's name."""
    texts: dict[str, str] = {}
    for declaring in (base for base in reversed(model.__mro__) if issubclass(base, ApiModel)):
        (definition,) = ast.parse(inspect.getsource(declaring)).body
        assert isinstance(definition, ast.ClassDef)
        for field, following in itertools.pairwise(definition.body):
            match field, following:
                case (
                    ast.AnnAssign(target=ast.Name(id=name)),
                    ast.Expr(value=ast.Constant(value=str(text))),
                ):
                    texts[name] = " ".join(text.split())
    return texts


class SpecModel(ApiModel):
    """A part that people write: an unknown field is an error, not a silence."""

    model_config = ConfigDict(extra="forbid")


Int32 = Annotated[int, Field(le=INT32_MAX), KubernetesSchema(format="int32")]
Int64 = Annotated[int, KubernetesSchema(format="int64")]
Count = Annotated[int, Field(ge=0), KubernetesSchema(format="int64")]
#: A failure zone, which is a line of a broker's configuration: no control characters.
Rack = Annotated[str, Field(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]+$")]
#: Kafka's text of a topic id: base64url without padding.
TopicIdText = Annotated[str, Field(pattern="^[A-Za-z0-9_-]{22}$")]
#: A DNS subdomain (RFC 1123), as every object's name: it becomes part of a path of the API.
ObjectName = Annotated[
    str,
    Field(
        min_length=1,
        max_length=253,
        pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$",
    ),
]

Generation = Annotated[
    int,
    Field(ge=0),
    KubernetesSchema(
        Rule(rule="self >= oldSelf", message="observedGeneration never goes back"), format="int64"
    ),
]
ControllerEpoch = Annotated[
    int,
    Field(ge=0, le=INT32_MAX),
    KubernetesSchema(
        Rule(
            rule="self >= oldSelf",
            message="STALE_CONTROLLER_EPOCH: a newer controller has written this "
            "object. Stop writing and rejoin the leader election.",
            reason="FieldValueForbidden",
        ),
        format="int32",
    ),
]


@dataclasses.dataclass(frozen=True, slots=True)
class PrinterColumn:
    """A printer column; ``priority`` 1 shows it with ``-o wide`` only."""

    name: str
    type: str
    json_path: str
    description: str
    priority: int = 0


def condition_column(
    condition: str, *, name: str | None = None, priority: int = 0
) -> PrinterColumn:
    """Return the column with the status of a condition."""
    path = f'.status.conditions[?(@.type=="{condition}")].status'
    description = f"Status of the condition {condition}"
    return PrinterColumn(name or condition, "string", path, description, priority)


def reason_column(condition: str) -> PrinterColumn:
    """Return the column with the reason of a condition."""
    path = f'.status.conditions[?(@.type=="{condition}")].reason'
    return PrinterColumn("Reason", "string", path, f"Reason of the condition {condition}")


PAUSED = PrinterColumn(
    "Paused",
    "string",
    r".metadata.annotations.tidemark\.dev/paused",
    "true if reconciliation is paused by the annotation tidemark.dev/paused",
)
AGE = PrinterColumn("Age", "date", ".metadata.creationTimestamp", "Time since creation")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ScaleSubresource:
    """JSON paths of the scale subresource, which ``kubectl scale`` and autoscalers use."""

    spec_path: str
    status_path: str
    selector_path: str


@dataclasses.dataclass(frozen=True, slots=True)
class ResourceKind:
    """A kind of the API: its model, its names, and how kubectl prints it."""

    model: type[BaseModel]
    _: dataclasses.KW_ONLY
    columns: tuple[PrinterColumn, ...]
    short_names: tuple[str, ...] = ()
    category: str = CATEGORY
    has_status: bool = True
    scale: ScaleSubresource | None = None

    @property
    def kind(self) -> str:
        """Name of the kind, which is that of its model."""
        return self.model.__name__

    @property
    def plural(self) -> str:
        """Name of the kind in the paths of the API server."""
        return PLURALS[self.kind]
