"""``python -m tools.site_resources build/site``: find what pages would load from another host.

A browser opens a link only when the reader follows it, but loads scripts, style sheets, fonts and
images by itself. The site must work without a network, so all of those must be its own files.
It imports only the standard library, because the environment of the site has no other packages.
"""

import re
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

#: Attributes whose address a browser loads. ``href`` counts only for the elements below.
_SOURCES = frozenset({"src", "srcset", "poster", "data", "xlink:href"})
_HREF = frozenset({"link", "use", "image"})
#: Relations of ``<link>`` that name another page instead of a resource.
_PAGES = frozenset({"canonical", "next", "prev", "alternate", "edit", "license", "author"})
_EXTERNAL = re.compile(r"(?:https?:|wss?:)?//", re.IGNORECASE)
_CSS = re.compile(r"""(?:url\(\s*|@import\s+)["']?((?:https?:)?//[^"')\s]+)""", re.IGNORECASE)


class _Resources(HTMLParser):
    """Collect the external addresses that an HTML page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        names = set(_SOURCES)
        if tag in _HREF and not set(values.get("rel", "").lower().split()) & _PAGES:
            names.add("href")
        for name in sorted(names & values.keys()):
            # A srcset lists several addresses; the others are one.
            parts = values[name].split(",") if name == "srcset" else [values[name]]
            self.found += [part.strip() for part in parts if _EXTERNAL.match(part.strip())]
        self.found += _CSS.findall(values.get("style", ""))
        self._in_style = tag == "style"

    def handle_endtag(self, tag: str) -> None:
        self._in_style = False

    def handle_data(self, data: str) -> None:
        if self._in_style:
            self.found += _CSS.findall(data)


def external(text: str, suffix: str) -> list[str]:
    """Return the addresses on other hosts that a file with this suffix loads."""
    if suffix == ".css":
        return _CSS.findall(text)
    resources = _Resources()
    resources.feed(text)
    resources.close()
    return resources.found


def faults(site: Path) -> Iterator[str]:
    """Yield a line for each resource from another host, and for a site without pages."""
    files = sorted(file for file in site.rglob("*") if file.suffix in {".html", ".css", ".svg"})
    if not any(file.suffix == ".html" for file in files):
        yield f"{site} has no pages; run: make site"
    for file in files:
        for address in external(file.read_text("utf-8"), file.suffix):
            yield f"{file.relative_to(site)} loads {address}"


def main() -> None:
    found = list(faults(Path(sys.argv[1])))
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
