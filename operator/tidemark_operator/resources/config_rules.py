"""CEL rules for maps of Kafka's keys to values, generated from the library's table.

Values are int-or-string (people write ``retention.ms: 604800000`` without quotes), so every rule
uses ``string(self[k])``. Keys of one type share a rule; its message names the first offender. A
number of 19 digits is compared as text, because CEL's ``int()`` raises above int64.

A key that is not supported is rejected if it is new or has another value than before. An object
that already has it can still be updated: its other fields must remain changeable.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated

from pydantic import BeforeValidator, Field, WithJsonSchema

from tidemark.configuration import table
from tidemark.configuration.key import ConfigKey
from tidemark.configuration.problems import UNKNOWN, advice, field_names, not_served, served_names
from tidemark.configuration.values import INT64_MAX, Number, ValueType
from tidemark_operator.resources.scalars import text_of_number
from tidemark_operator.resources.schema import KubernetesSchema, Rule


def config_rules(keys: Mapping[str, ConfigKey]) -> tuple[Rule, ...]:
    """Return all rules of a configuration map.

    In this order: keys with a field, unknown keys, unsupported keys, each type's values.
    """
    rules = [_unknown_rule(keys), _not_served_rule(keys)]
    fields = field_names(keys)
    if fields:
        rules.insert(0, _field_rule(fields))
    rules.extend(_type_rule(type_, names) for type_, names in _by_type(keys).items())
    return tuple(rules)


def _by_type(keys: Mapping[str, ConfigKey]) -> dict[ValueType, list[str]]:
    groups: dict[ValueType, list[str]] = {}
    for name in served_names(keys):
        groups.setdefault(keys[name].type, []).append(name)
    return groups


def _unknown_rule(names: Iterable[str]) -> Rule:
    known = cel_list(sorted(names))
    return Rule(
        rule=f"self.all(k, k in {known})",
        message=f"a key {UNKNOWN}",
        message_expression=f"self.filter(k, !(k in {known}))[0] + ' {UNKNOWN}'",
    )


def _not_served_rule(keys: Mapping[str, ConfigKey]) -> Rule:
    """Return the CEL rule that rejects configuration keys that Tidemark does not support.

    Unchanged keys stay valid. ``oldSelf`` is optional here, because the rule also runs on creation.
    The message cannot use it, so it may name a key that is unchanged.
    """
    refused = not_served(keys)
    # Some keys are accepted with the one value that is supported.
    accepted = ", ".join(cel_list((name, key.only)) for name, key in refused.items() if key.only)
    offends = f"k in {cel_list(refused)} && !([k, string(self[k])] in [{accepted}])"
    # An unchanged entry stays valid, so that the rest of the object can be updated.
    is_as_before = (
        "oldSelf.hasValue() && k in oldSelf.value() && "
        "string(oldSelf.value()[k]) == string(self[k])"
    )
    reasons = cel_map({name: key.reason for name, key in refused.items()})
    return Rule(
        rule=f"!self.exists(k, {offends} && !({is_as_before}))",
        message=f"a configuration key is not served{advice(keys)}",
        message_expression=(
            f"self.filter(k, {offends}).map(k, k + ' ' + {reasons}[k])[0] + "
            f"{cel_text(advice(keys))}"
        ),
        optional_old_self=True,
    )


def _field_rule(fields: Mapping[str, str]) -> Rule:
    """Return the rule that rejects keys with a field of their own, and names the field."""
    names = cel_list(fields)
    offender = f"self.filter(k, k in {names})[0]"
    return Rule(
        rule=f"!self.exists(k, k in {names})",
        message="a key has its own field in spec.tiering. Set that field instead.",
        message_expression=(
            f"{offender} + ' cannot be set in spec.config. Set ' + "
            f"{cel_map(fields)}[{offender}] + ' instead.'"
        ),
    )


def _type_rule(type_: ValueType, names: list[str]) -> Rule:
    """Return the CEL rule that checks the values of all keys of one type."""
    # A single key has a simpler rule, and a message with its name.
    if len(names) == 1:
        name = cel_text(names[0])
        return Rule(
            rule=f"!({name} in self) || {_accepts(type_, f'string(self[{name}])')}",
            message=f"{names[0]} {type_.requirement}",
        )
    in_names = f"k in {cel_list(names)}"
    accepts = _accepts(type_, "string(self[k])")
    return Rule(
        rule=f"self.all(k, !({in_names}) || {accepts})",
        message=f"a value {type_.requirement}",
        message_expression=(
            f"self.filter(k, {in_names} && !{accepts})[0] + {cel_text(' ' + type_.requirement)}"
        ),
    )


def _accepts(type_: ValueType, text: str) -> str:
    """Return the CEL expression, in brackets, that is equivalent to the type's ``accepts``."""
    if not isinstance(type_, Number):
        return f"({text}.matches({cel_text(f'^{type_.regex}$')}))"
    # int() would fail above int64, and fail the whole rule with it.
    if type_.maximum >= INT64_MAX:
        return (
            f"({text}.matches('^-?[0-9]{{1,18}}$') && int({text}) >= {type_.minimum} || "
            f"{text}.matches('^[1-9][0-9]{{18}}$') && {text} <= '{INT64_MAX}')"
        )
    bounds = f"int({text}) >= {type_.minimum} && int({text}) <= {type_.maximum}"
    return f"({text}.matches('^-?[0-9]{{1,18}}$') && {bounds})"


def cel_text(text: str) -> str:
    """Return a CEL string literal."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


def cel_list(texts: Iterable[str]) -> str:
    """Return a CEL list of string literals."""
    return f"[{', '.join(cel_text(text) for text in texts)}]"


def cel_map(entries: Mapping[str, str]) -> str:
    """Return a CEL map of strings to strings."""
    return (
        f"{{{', '.join(f'{cel_text(name)}: {cel_text(text)}' for name, text in entries.items())}}}"
    )


#: Value of a configuration key as text; an unquoted whole number becomes its text.
ConfigValue = Annotated[
    str,
    Field(max_length=1024),
    BeforeValidator(text_of_number),
    WithJsonSchema({"x-kubernetes-int-or-string": True, "maxLength": 1024}),
]

TopicConfig = Annotated[
    dict[str, ConfigValue],
    Field(max_length=64),
    KubernetesSchema(*config_rules(table.TOPIC)),
]
GroupConfig = Annotated[
    dict[str, ConfigValue],
    Field(max_length=8),
    KubernetesSchema(*config_rules(table.GROUP)),
]
ClusterConfig = Annotated[
    dict[str, ConfigValue],
    Field(max_length=64),
    KubernetesSchema(*config_rules(table.CLUSTER)),
]
