"""Estimates of the time that a build still takes."""

import pytest

from tidemark_devcluster.toolchain.progress import TimeLeft

PACKAGES = 1000
DOWNLOADS_S = 90
LINKING_S = 20


def build(pace: list[float]) -> list[tuple[float, float]]:
    """Return times and fractions of a build: downloads, packages, then the linker.

    ``pace``: packages per second in each of equal parts of the packages.
    """
    reports = [(float(second), 0.0) for second in range(DOWNLOADS_S)]
    now = float(DOWNLOADS_S)
    for number in range(PACKAGES):
        now += 1 / pace[number * len(pace) // PACKAGES]
        reports.append((now, (number + 1) / PACKAGES))
    return [*reports, (now + LINKING_S, 1.0)]


@pytest.mark.parametrize(
    "pace",
    [[4.0], [5.0, 3.0], [3.0, 5.0], [6.0, 3.0, 5.0, 4.0]],
    ids=["even", "slower", "faster", "uneven"],
)
def test_estimates_converge_to_the_time_that_the_build_takes(pace: list[float]) -> None:
    """Downloads do not count: they made early estimates several times too long."""
    reports = build(pace)
    end = reports[-2][0]
    estimate = TimeLeft()
    estimates = [(now, estimate.after(now, fraction)) for now, fraction in reports]
    known = [(end - now, left) for now, left in estimates if left is not None and now < end]
    assert len(known) > 0.9 * PACKAGES
    # The error becomes smaller with the time that is left.
    assert all(abs(seconds - truth) < truth / 2 + 20 for truth, seconds in known)


def test_an_estimate_changes_gradually() -> None:
    """A pause of the compiler in one large package does not triple the estimate."""
    left = TimeLeft()
    for second in range(60):
        before = left.after(float(second), 0.1 + second / 200)
    assert before is not None
    after = left.after(90.0, 0.1 + 60 / 200)
    assert after is not None
    assert after < 1.5 * before


@pytest.mark.parametrize(
    ("reports", "text"),
    [
        ([(0, 0.0), (60, 0.0)], ""),
        ([(0, 0.01), (3, 0.3)], ""),
        ([(0, 0.01), (60, 0.02)], ""),
        ([(0, 0.01), (60, 0.26)], "about 3 min left"),
        ([(0, 0.01), (60, 0.76)], "about 19 s left"),
        ([(0, 0.01), (60, 1.0)], "almost done"),
    ],
    ids=["no progress", "too early", "too little", "minutes", "seconds", "linking"],
)
def test_an_estimate_is_shown_once_enough_is_known(
    reports: list[tuple[float, float]], text: str
) -> None:
    left = TimeLeft()
    shown = ""
    for now, fraction in reports:
        shown = left.text(now, fraction)
    assert shown == text
