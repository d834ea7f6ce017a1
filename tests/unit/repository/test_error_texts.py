"""Messages about an exception contain its text, or its type if it has none."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tidemark.error_text import error_text

ROOT = Path(__file__).parents[3]
PROGRAMS = ("tidemark", "operator", "broker_image", "cli", "pipeline")


def test_error_without_a_message_is_named_by_its_type() -> None:
    assert error_text(TimeoutError()) == "TimeoutError"
    assert error_text(OSError("disk full")) == "disk full"


def empty_messages(source: str) -> Iterator[int]:
    """Return the lines of a module where a caught exception can leave a message empty."""
    for handler in ast.walk(ast.parse(source)):
        if not isinstance(handler, ast.ExceptHandler) or handler.name is None:
            continue
        # The text of a TimeoutError is usually empty.
        is_silent = "TimeoutError" in ast.unparse(handler.type or ast.Constant(""))
        nodes = list(ast.walk(handler))
        # `str(error) or "no answer"` has a default.
        defaulted = {id(node.values[0]) for node in nodes if isinstance(node, ast.BoolOp)}
        for node in nodes:
            if id(node) in defaulted:
                continue
            if _is_or_default(node, handler.name) or (is_silent and _shows(node, handler.name)):
                yield node.lineno  # type: ignore[attr-defined]


def _is_or_default(node: ast.AST, error: str) -> bool:
    """``error or "default"``: an exception object is always true."""
    return isinstance(node, ast.BoolOp) and _is_name(node.values[0], error)


def _shows(node: ast.AST, error: str) -> bool:
    """``f"{error}"``, ``str(error)`` or ``logger.info("%s", error)``."""
    if isinstance(node, ast.FormattedValue):
        return _is_name(node.value, error) and node.conversion != ord("r")
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    is_message = called == "str" or called.startswith("logger.")
    return is_message and any(_is_name(argument, error) for argument in node.args)


def _is_name(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def test_no_message_about_a_caught_exception_can_be_empty() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line}: use tidemark.error_text"
        for program in PROGRAMS
        for path in sorted((ROOT / program).rglob("*.py"))
        for line in empty_messages(path.read_text())
    ]
    assert found == []


def test_each_form_of_an_empty_message_is_found() -> None:
    caught = "try: work()\nexcept (OSError, TimeoutError) as error:\n    "
    for statement in (
        'text = error or "no answer"',
        'logger.info("%s", error)',
        "text = str(error)",
        'text = f"it failed: {error}"',
    ):
        assert list(empty_messages(caught + statement)) == [3], statement
    for statement in ("text = error_text(error)", 'text = str(error) or "no answer"'):
        assert list(empty_messages(caught + statement)) == [], statement
