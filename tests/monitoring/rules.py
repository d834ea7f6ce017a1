"""The chart's rules as Prometheus reads them, and their contents."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
FILE = ROOT / "charts" / "tidemark" / "files" / "rules.yaml"
#: The namespace for which the file stands as it is.
NAMESPACE = "tidemark"
_NAME = re.compile(r"\b(?:tidemark|kafka|org_apache_kafka|process)_\w+")


def groups() -> list[dict[str, Any]]:
    """As the file has them."""
    found: list[dict[str, Any]] = yaml.safe_load(FILE.read_text("utf-8"))["groups"]
    return found


def rules() -> Iterator[dict[str, Any]]:
    """Every rule, in order."""
    for group in groups():
        yield from group["rules"]


def alerts() -> dict[str, dict[str, Any]]:
    """Return the alerts by name."""
    return {rule["alert"]: rule for rule in rules() if "alert" in rule}


def recorded() -> set[str]:
    """The series that recording rules make."""
    return {rule["record"] for rule in rules() if "record" in rule}


def metrics_in(expression: str) -> set[str]:
    """Return the table's rows that an expression uses, by name.

    Recorded series are left out, and a histogram's buckets count as the histogram.
    """
    # Recorded series have names with colons.
    text = re.sub(r"\b\w+:\w+:\w+\b", "", expression)
    return {re.sub(r"_bucket$", "", name) for name in _NAME.findall(text)}
