"""``figures.json``: how the comparison stood the last time that all of the table was sent, for
docs/reference/compatibility.md."""

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.conformance.oracle.intended_differences import ON_PURPOSE

FIGURES = Path(__file__).with_name("figures.json")


@dataclass(frozen=True, slots=True)
class ComparisonFigures:
    """Requests to both, by how they were answered."""

    sent: int
    alike: int
    on_purpose: int
    otherwise: int

    def __str__(self) -> str:
        return (
            f"{self.sent} requests to both: {self.alike} answered alike, {self.on_purpose} "
            f"otherwise on purpose, {self.otherwise} otherwise"
        )

    def dumped(self) -> str:
        """As the file has it."""
        return json.dumps(asdict(self)) + "\n"


def load(text: str) -> ComparisonFigures:
    """Parse the file's text."""
    return ComparisonFigures(**json.loads(text))


def section(figures: ComparisonFigures) -> Iterator[str]:
    """Lines of the page."""
    yield "## Answer by answer"
    yield ""
    yield (
        "`make conformance SUITE=oracle` sends the same requests to a Tidemark broker and to "
        "Apache Kafka 4.3.1, in every version of every API that both serve. It sends valid "
        "requests, and requests with one field that is empty, null, negative, unknown, illegal or "
        "repeated. It also sends malformed frames and record batches, and whole histories of "
        f"groups, producers, transactions, fetch sessions and topics. {figures}. These answers "
        "differ on purpose:"
    )
    yield ""
    yield "| requests | what differs, and why |"
    yield "|---|---|"
    # Cases with the same reason share a row of the table.
    reasons: dict[str, dict[str, None]] = {}
    for item in ON_PURPOSE:
        where = f" in `{item.path}`" if item.path.strip("*") else ""
        reasons.setdefault(item.reason, {})[f"`{item.case}`{where}"] = None
    for reason, cases in reasons.items():
        yield f"| {', '.join(cases)} | {reason} |"
