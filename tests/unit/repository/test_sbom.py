"""Licences that `make sbom` accepts and refuses."""

import pytest

from tools import sbom


@pytest.mark.parametrize(
    "named",
    [
        ["MIT"],
        ["Apache-2.0 AND MIT"],
        ["GPL-3.0-only OR MIT"],
        ["License :: OSI Approved :: BSD License"],
    ],
    ids=str,
)
def test_permissive_licences_are_accepted(named: list[str]) -> None:
    assert sbom.refusal("some", named) is None


@pytest.mark.parametrize(
    "named",
    [[], ["AGPL-3.0-or-later"], ["LGPL-2.1"], ["GPL-2.0 AND MIT"], ["MIT", "SSPL-1.0"], ["odd"]],
    ids=str,
)
def test_other_licences_are_refused(named: list[str]) -> None:
    assert "some" in (sbom.refusal("some", named) or "")


def test_packages_with_license_exceptions_are_pinned_and_not_permissive() -> None:
    assert sbom.EXCUSED.keys() <= sbom.pinned().keys()
