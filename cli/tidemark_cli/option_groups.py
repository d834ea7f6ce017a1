"""Groups of options that several commands share, each declared once.

A group is a frozen dataclass whose fields are annotated as parameters of a command. A command with
:func:`option_groups` takes the group as one parameter, and its users see the group's options.
"""

import dataclasses
import inspect
from collections.abc import Callable
from typing import Any, get_type_hints


def option_groups(command: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has the options of its groups in place of the groups."""
    hints = get_type_hints(command, include_extras=True)
    groups: dict[str, tuple[Any, list[str]]] = {}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(command).parameters.items():
        group = hints[name]
        if not dataclasses.is_dataclass(group):
            parameters.append(_option(name, parameter.default, group))
            continue
        fields = get_type_hints(group, include_extras=True)
        groups[name] = group, [field.name for field in dataclasses.fields(group)]
        parameters += [
            _option(field.name, field.default, fields[field.name])
            for field in dataclasses.fields(group)
        ]

    def expanded(**given: Any) -> None:
        for name, (group, fields) in groups.items():
            given[name] = group(**{field: given.pop(field) for field in fields})
        command(**given)

    # Typer reads these; inspect.getdoc and tracebacks read the rest.
    expanded.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    expanded.__annotations__ = {item.name: item.annotation for item in parameters}
    expanded.__name__, expanded.__doc__ = command.__name__, command.__doc__
    return expanded


def _option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    """Return a parameter; dataclasses and signatures have different marks of a missing default."""
    if default is dataclasses.MISSING:
        default = inspect.Parameter.empty
    kind = inspect.Parameter.KEYWORD_ONLY  # the only one whose required ones may follow optional
    return inspect.Parameter(name, kind, default=default, annotation=annotation)
