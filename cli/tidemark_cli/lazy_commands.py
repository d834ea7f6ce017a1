"""Command groups that import a command only when it is invoked.

Each command imports its own part of the project: Spark, the operator's resources, Kafka's schema.
A group keeps one row per command, with the summary that its help shows, so that starting one
command does not pay for the others.
"""

from collections.abc import Mapping
from importlib import import_module
from typing import Any, ClassVar, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from tidemark.lean_start import importing, leave_out_hypothesis

#: The context object of a command where kubectl started the program.
OF_KUBECTL = "kubectl"


class LazyCommand(NamedTuple):
    """Location of a command (``module:attribute``, a function or a group) and its summary.

    ``passes_through``: unknown options belong to another program.
    """

    target: str
    summary: str
    passes_through: bool = False

    def load(self) -> Any:
        """Import the function or :class:`typer.Typer` that the row names."""
        leave_out_hypothesis()  # kio would import it where the tests are installed
        module, attribute = self.target.split(":")
        return getattr(import_module(module), attribute)

    def command(self, name: str) -> Any:
        """Import the row's command or group, ready to be invoked as ``name``."""
        with importing():
            return self._command(name)

    def _command(self, name: str) -> Any:
        loaded = self.load()
        if not isinstance(loaded, typer.Typer):
            app = typer.Typer(pretty_exceptions_show_locals=False)
            settings = {
                "allow_extra_args": self.passes_through,
                "ignore_unknown_options": self.passes_through,
            }
            app.command(name, context_settings=settings)(loaded)
            loaded = app
        return get_command(loaded)


class LazyGroup(TyperGroup):
    """Group of :class:`LazyCommand`; a subclass sets ``rows``."""

    rows: ClassVar[Mapping[str, LazyCommand]] = {}

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        # The help and shell completion need names and summaries only: placeholders have both.
        for name, row in self.rows.items():
            self.add_command(TyperCommand(name, help=row.summary))

    def resolve_command(
        self, ctx: Any, args: list[str]
    ) -> tuple[str | None, Any | None, list[str]]:
        """Return the invoked command, imported, instead of its placeholder."""
        name, command, rest = super().resolve_command(ctx, args)
        if name is None or command is None:  # shell completion of an unknown name
            return name, command, rest
        return name, self.rows[name].command(name), rest
