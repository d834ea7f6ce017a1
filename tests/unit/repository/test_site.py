"""The site of docs/ has every page, and loads nothing from another host.

``make site`` checks the pages that it builds.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tools.site_resources import external, faults

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
MAKEFILE = (ROOT / "Makefile").read_text("utf-8")


class _Tolerant(yaml.SafeLoader):
    """Loader that reads tags of Python functions and of environment variables as nothing."""


_Tolerant.add_multi_constructor("", lambda *_: None)


@pytest.fixture(scope="module")
def site() -> dict[str, Any]:
    return dict(yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), Loader=_Tolerant))


def _files(nav: object) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    elif isinstance(nav, dict):
        yield from _files(list(nav.values()))
    elif isinstance(nav, list):
        for item in nav:
            yield from _files(item)


def test_every_page_is_in_the_navigation(site: dict[str, Any]) -> None:
    existing = {str(page.relative_to(DOCS)) for page in DOCS.rglob("*.md")}
    assert set(_files(site["nav"])) == existing


def test_site_loads_only_its_own_files(site: dict[str, Any]) -> None:
    # A font that is not false is fetched from Google.
    assert site["theme"]["font"] is False
    scripts = site["extra"]["polyfills"] + site["extra_javascript"]
    assert not [path for path in scripts + site["extra_css"] if "//" in path]


def test_theme_finds_scripts_that_it_would_load_from_another_host(site: dict[str, Any]) -> None:
    """The offline plugin adds an address unless a polyfill is called ``iframe-worker``. Without
    Mermaid's script the theme loads it when a page has a diagram.
    """
    assert "offline" in site["plugins"]
    assert any("iframe-worker" in path for path in site["extra"]["polyfills"])
    assert any("mermaid" in path for path in site["extra_javascript"])
    for path in site["extra"]["polyfills"] + site["extra_javascript"]:
        assert f"/{Path(path).name}" in MAKEFILE, path


def test_scripts_are_pinned_by_hash() -> None:
    lock = json.loads((ROOT / "requirements/docs/package-lock.json").read_text("utf-8"))
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert len(packages) == 2
    for entry in packages.values():
        assert entry["integrity"].startswith("sha512-")
        assert "resolved" not in entry


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".html", '<script src="https://cdn.example/a.js"></script>'),
        (".html", '<link rel="stylesheet" href="//cdn.example/a.css">'),
        (".html", '<link rel="preconnect" href="https://fonts.example">'),
        (".html", '<img src="a.png" srcset="b.png, https://cdn.example/c.png 2x">'),
        (".html", '<p style="background: url(https://cdn.example/a.png)">'),
        (".html", "<style>@import 'https://cdn.example/a.css';</style>"),
        (".css", '@font-face { src: url("https://cdn.example/a.woff2") }'),
        (".svg", '<svg><image xlink:href="https://cdn.example/a.png"/></svg>'),
    ],
)
def test_resource_of_another_host_is_found(suffix: str, text: str, tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<p>page</p>")
    (tmp_path / f"file{suffix}").write_text(text)
    assert len(list(faults(tmp_path))) == 1


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".html", '<a href="https://example.org">a link</a> https://example.org'),
        (".html", '<link rel="canonical" href="https://example.org/">'),
        (".html", '<script src="assets/a.js"></script><img src="data:image/png;base64,AA//">'),
        (".css", ".a { background: url(a.png) } /* https://example.org */"),
        (
            ".svg",
            '<svg xmlns="http://www.w3.org/2000/svg"><title>https://example.org</title></svg>',
        ),
    ],
)
def test_links_and_own_files_are_no_resources_of_another_host(suffix: str, text: str) -> None:
    assert external(text, suffix) == []


def test_empty_site_is_a_fault(tmp_path: Path) -> None:
    assert list(faults(tmp_path)) == [f"{tmp_path} has no pages; run: make site"]
