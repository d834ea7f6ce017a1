"""Progress and errors in a build's output."""

from tidemark_devcluster.toolchain.build import ERROR_LINES, follow


def test_downloads_and_packages_are_counted() -> None:
    reports: list[tuple[str, float]] = []
    lines = ["go: downloading example.test/a v1.0.0\n", "example.test/a\n", "runtime\n"]
    last = follow(lines, 4, lambda detail, fraction: reports.append((detail, fraction)))
    assert reports == [("1 modules downloaded", 0.0), ("1 packages", 0.25), ("2 packages", 0.5)]
    assert not last


def test_more_packages_than_expected_are_no_more_than_all() -> None:
    reports: list[float] = []
    follow(["a", "b", "c"], 2, lambda _detail, fraction: reports.append(fraction))
    assert reports == [0.5, 1.0, 1.0]


def test_the_last_lines_of_an_error_are_kept() -> None:
    errors = [f"main.go:{number}: wrong\n" for number in range(100)]
    last = follow(["main\n", *errors], 1, lambda _detail, _fraction: None)
    assert list(last) == [line.rstrip() for line in errors[-ERROR_LINES:]]
