"""docs/reference/protocol.md lists the same APIs as ApiVersions."""

import re
from pathlib import Path

from tests.integration.api.test_api_versions import SERVED
from tidemark_broker.api.serving.dispatcher import APIS
from tidemark_broker.api.serving.reference_page import render

ROOT = Path(__file__).parents[3]


def test_page_is_current() -> None:
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text()
    assert page == render(), "run make pages"


def test_page_lists_every_api_with_its_versions() -> None:
    rows = re.findall(r"(?m)^\| (\d+) \| (\w+) \| (\d+)(?: to (\d+))? \|$", render())
    listed = {int(key): (int(first), int(last or first)) for key, _, first, last in rows}
    # ApiVersions advertises Produce from 0 for old clients.
    assert listed == {**SERVED, 0: (3, SERVED[0][1])}
    assert {api.name for api in APIS} < {name for _, name, _, _ in rows}


def test_apis_that_the_page_calls_unserved_are_unserved() -> None:
    _, _, limitations = render().partition("## Limitations")
    assert not [api.name for api in APIS if re.search(rf"\b{api.name}\b", limitations)]
