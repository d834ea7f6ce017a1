"""A Java runtime is copied from Debian's package with its links resolved."""

from pathlib import Path

from e2e.pods.jre import copy_without_links


def test_links_within_a_package_are_resolved(tmp_path: Path) -> None:
    root = tmp_path / "root"
    home = root / "usr/lib/jvm/java-17"
    settings = root / "etc/java-17"
    for folder in (home / "conf", home / "bin", settings / "security"):
        folder.mkdir(parents=True)
    (home / "bin/java").write_text("program")
    (settings / "security/java.security").write_text("rules")
    (home / "conf/security").symlink_to("/etc/java-17/security")
    (home / "bin/javaw").symlink_to("java")
    # This link leads into another package, and is left out.
    (home / "cacerts").symlink_to("/etc/ssl/certs/java/cacerts")
    copy_without_links(root, home, tmp_path / "taken")
    taken = {
        str(path.relative_to(tmp_path / "taken")): path.read_text()
        for path in (tmp_path / "taken").rglob("*")
        if path.is_file()
    }
    assert taken == {
        "bin/java": "program",
        "bin/javaw": "program",
        "conf/security/java.security": "rules",
    }
    assert not any(path.is_symlink() for path in (tmp_path / "taken").rglob("*"))
