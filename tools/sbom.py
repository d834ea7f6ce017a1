"""``make sbom``: pinned packages, their licences, and their known vulnerabilities.

``build/sbom.json`` is a bill of materials in CycloneDX of everything that the lock installs. A
licence that is not permissive is an error unless it is in ``EXCUSED`` with the reason. pip-audit
looks up vulnerabilities, if its data can be reached.
"""

import json
import re
import subprocess
import sys
from collections import Counter
from importlib.metadata import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements.txt"
BILL = ROOT / "build" / "sbom.json"
#: Words of licences' names and SPDX ids that let everybody do nearly everything.
PERMISSIVE = re.compile(
    r"\b(MIT|MIT-0|MIT-CMU|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|PSFL|Unlicense|Zlib|"
    r"HPND|Public Domain|CC0|BSL-1\.0|MPL-2\.0|Mozilla Public License 2\.0)\b",
    re.IGNORECASE,
)
#: And those that ask for something in return; only another one to choose from outweighs them.
_RESTRICTIVE = re.compile(r"GPL|SSPL|BUSL|EUPL|CC-BY-NC|Commons Clause|Proprietary", re.IGNORECASE)
#: Not permissive, by name: why it is here all the same.
EXCUSED = {
    "crc32c": "LGPL; kio requires it, and none of our programs loads it "
    "(tests/integration/test_licences.py)",
}


def pinned() -> dict[str, str]:
    """Version by name, as the lock has them."""
    found = re.findall(r"^([A-Za-z0-9._-]+)==(\S+)", LOCK.read_text("utf-8"), flags=re.MULTILINE)
    return {_normal(name): version for name, version in found}


def licences(component: dict[str, Any]) -> list[str]:
    """Return the licences of a component: ids, names and expressions alike."""
    found = []
    for license_ in component.get("licenses", ()):
        licence = license_.get("license", {})
        found.append(license_.get("expression") or licence.get("id") or licence.get("name") or "")
    found = found or [metadata(component["name"])["License"] or ""]
    return [text.splitlines()[0][:80] for text in found if text.strip()]


def refusal(name: str, named: list[str]) -> str | None:
    """Why a package may not be used: an unknown licence, or one that is not permissive."""
    allowed = any(PERMISSIVE.search(text) for text in named) and not any(
        _RESTRICTIVE.search(text) and " OR " not in text for text in named
    )
    if name in EXCUSED or allowed:
        return None
    return f"{name}: {', '.join(named) or 'no licence is named'}"


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _tool(name: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    program = Path(sys.executable).with_name(name)
    return subprocess.run([str(program), *arguments], capture_output=True, text=True, check=False)


def _make_bill() -> list[dict[str, Any]]:
    BILL.parent.mkdir(exist_ok=True)
    made = _tool(
        "cyclonedx-py",
        *("environment", sys.executable, "--output-reproducible", "--output-format", "JSON"),
        *("--output-file", str(BILL)),
    )
    if made.returncode:
        raise SystemExit(f"the bill cannot be made: {made.stderr.strip()}")
    bill = json.loads(BILL.read_text("utf-8"))
    # The environment also contains pip and this command's own packages.
    wanted = pinned()
    bill["components"] = [item for item in bill["components"] if _normal(item["name"]) in wanted]
    BILL.write_text(json.dumps(bill, indent=1, sort_keys=True) + "\n", "utf-8")
    return list(bill["components"])


def _vulnerabilities() -> str:
    """One line; what was found goes before it."""
    asked = _tool(
        "pip-audit",
        *("--requirement", str(LOCK), "--disable-pip", "--no-deps", "--format", "json"),
        *("--progress-spinner", "off"),
    )
    try:
        audited = json.loads(asked.stdout)["dependencies"]
    except (ValueError, KeyError):
        reason = (asked.stderr.strip().splitlines() or ["no answer"])[-1]
        return f"vulnerabilities: not looked up, the data cannot be reached ({reason[:120]})"
    count = 0
    for package in audited:
        for vuln in package.get("vulns", ()):
            count += 1
            fixed = ", ".join(vuln["fix_versions"]) or "nothing yet"
            print(f"{package['name']} {package['version']}: {vuln['id']}, fixed in {fixed}")
    return f"vulnerabilities: {count} known in {len(audited)} packages"


def main() -> int:
    """1 where a licence is refused, or a vulnerability is known."""
    components = _make_bill()
    # Licenses are counted by their first name and checked by all of them.
    refusals, kinds = [], Counter[str]()
    for component in components:
        named = licences(component)
        kinds[named[0] if named else "none named"] += 1
        refused = refusal(_normal(component["name"]), named)
        refusals += [refused] if refused else []
    for kind, number in kinds.most_common():
        print(f"{number:4} {kind}")
    for name, why in EXCUSED.items():
        print(f"{name}: {why}")
    for text in refusals:
        print(f"refused: {text}")
    found = _vulnerabilities()
    print(
        f"{BILL.relative_to(ROOT)}: {len(components)} of {len(pinned())} pinned packages, "
        f"{len(refusals)} licences refused; {found}"
    )
    return 1 if refusals or not (": 0 known" in found or "not looked up" in found) else 0


if __name__ == "__main__":
    sys.exit(main())
