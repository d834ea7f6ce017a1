"""CEL rules for maps of Kafka keys to values, made from the table in ``kafka_keys``.

Values are int-or-string (people write ``retention.ms: 604800000`` without quotes), so every rule
looks at ``string(self[k])``. Keys of one shape share a rule; its message names the first offender.
A number of 19 digits is compared as text, because CEL's ``int()`` raises above int64.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from tidemark_operator.resources.kafka_keys import (
    CLUSTER_KEYS,
    TOPIC_KEYS,
    TYPED_KEYS,
    Number,
    Shape,
)
from tidemark_operator.resources.names import INT64_MAX
from tidemark_operator.resources.quantities import text_of_number
from tidemark_operator.resources.schema import Kube, Rule


def config_rules(keys: Mapping[str, Shape], typed: Mapping[str, str]) -> tuple[Rule, ...]:
    """All rules of a configuration map: typed keys, unknown keys, then each shape's values."""
    rules = [_unknown_rule([*keys, *typed])]
    if typed:
        rules.insert(0, _typed_rule(typed))
    rules.extend(_shape_rule(shape, names) for shape, names in _by_shape(keys).items())
    return tuple(rules)


def _by_shape(keys: Mapping[str, Shape]) -> dict[Shape, list[str]]:
    groups: dict[Shape, list[str]] = {}
    for name, shape in sorted(keys.items()):
        groups.setdefault(shape, []).append(name)
    return groups


def _unknown_rule(names: Iterable[str]) -> Rule:
    known = cel_list(sorted(names))
    return Rule(
        rule=f"self.all(k, k in {known})",
        message="a key is not a known configuration key",
        message_expression=(
            f"self.filter(k, !(k in {known}))[0] + ' is not a known configuration key'"
        ),
    )


def _typed_rule(typed: Mapping[str, str]) -> Rule:
    """Refuses the keys that have fields of their own, and says which field."""
    names = cel_list(typed)
    fields = ", ".join(f"{cel_text(name)}: {cel_text(field)}" for name, field in typed.items())
    offender = f"self.filter(k, k in {names})[0]"
    return Rule(
        rule=f"!self.exists(k, k in {names})",
        message="a key has a field of its own under spec.tiering",
        message_expression=(
            f"{offender} + ' is not set in spec.config: use ' + {{{fields}}}[{offender}]"
        ),
    )


def _shape_rule(shape: Shape, names: list[str]) -> Rule:
    if len(names) == 1:
        name = cel_text(names[0])
        return Rule(
            rule=f"!({name} in self) || {_accepts(shape, f'string(self[{name}])')}",
            message=f"{names[0]} {shape.wanted}",
        )
    in_names = f"k in {cel_list(names)}"
    accepts = _accepts(shape, "string(self[k])")
    return Rule(
        rule=f"self.all(k, !({in_names}) || {accepts})",
        message=f"a value {shape.wanted}",
        message_expression=(
            f"self.filter(k, {in_names} && !{accepts})[0] + {cel_text(' ' + shape.wanted)}"
        ),
    )


def _accepts(shape: Shape, text: str) -> str:
    """The CEL expression, in brackets, that says what ``Shape.accepts`` says."""
    if not isinstance(shape, Number):
        return f"({text}.matches({cel_text(f'^{shape.regex}$')}))"
    if shape.maximum >= INT64_MAX:
        return (
            f"({text}.matches('^-?[0-9]{{1,18}}$') && int({text}) >= {shape.minimum} || "
            f"{text}.matches('^[1-9][0-9]{{18}}$') && {text} <= '{INT64_MAX}')"
        )
    bounds = f"int({text}) >= {shape.minimum} && int({text}) <= {shape.maximum}"
    return f"({text}.matches('^-?[0-9]{{1,18}}$') && {bounds})"


def cel_text(text: str) -> str:
    """A CEL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def cel_list(texts: Iterable[str]) -> str:
    """A CEL list of string literals."""
    return f"[{', '.join(cel_text(text) for text in texts)}]"


#: A value of a configuration key: a text; a bare whole number is taken as its text.
ConfigValue = Annotated[
    str,
    Field(max_length=1024),
    BeforeValidator(text_of_number),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 1024}),
]

TopicConfig = Annotated[
    dict[str, ConfigValue],
    Field(max_length=64),
    Kube(*config_rules(TOPIC_KEYS, TYPED_KEYS)),
]
ClusterConfig = Annotated[
    dict[str, ConfigValue],
    Field(max_length=64),
    Kube(*config_rules(CLUSTER_KEYS, {})),
]
