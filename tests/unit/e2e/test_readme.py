"""The README's way to an installation: six commands, which `make e2e` runs as they stand
(chapter "install"), and the values that a reader begins with."""

from pathlib import Path

import yaml

from e2e.pods import objects, readme
from e2e.pods.chapters.install import KEYS

ROOT = Path(__file__).parents[3]


def test_there_are_six_and_the_last_one_tests() -> None:
    commands = readme.commands()
    assert len(commands) == 6
    assert commands[1] == f"kubectl create namespace {objects.NAMESPACE}"
    assert commands[-1].startswith("helm test ")
    assert sum(f"--values {readme.VALUES_FILE}" in command for command in commands) == 1
    named = {word for command in commands for word in KEYS if f'"${word}"' in command}
    assert named == KEYS.keys()


def test_what_a_run_puts_in_its_place_is_the_file_and_the_keys() -> None:
    """Whatever the README sets is set in a run, or is another value of the same key."""

    def keys(values: object, path: str = "") -> set[str]:
        if not isinstance(values, dict):
            return {path}
        return {key for name, inner in values.items() for key in keys(inner, f"{path}.{name}")}

    assert keys(readme.values()) <= keys(objects.values(3))


def test_the_page_on_installing_begins_with_the_same_values() -> None:
    text = (ROOT / "docs" / "get-started" / "install.md").read_text(encoding="utf-8")
    block = text.partition("`my-values.yaml`:\n\n```yaml\n")[2].partition("```")[0]
    assert yaml.safe_load(block) == readme.values()


def test_the_topic_on_the_first_screen_is_that_of_the_commands_below_it() -> None:
    text = readme.README.read_text(encoding="utf-8")
    shown = yaml.safe_load(text.partition("```yaml\n")[2].partition("```")[0])
    path = ROOT / "examples" / "02-tiering-on-and-off" / "on.yaml"
    assert f"apply -f {path.relative_to(ROOT)}" in text
    assert shown == yaml.safe_load(path.read_text(encoding="utf-8"))
