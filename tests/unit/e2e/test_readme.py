"""The README's installation: six commands, which `make e2e` runs unchanged, and its values."""

from pathlib import Path

import yaml

from e2e.pods import objects, readme
from e2e.pods.chapters.install import KEYS

ROOT = Path(__file__).parents[3]


def test_readme_has_six_commands_and_ends_with_a_test() -> None:
    commands = readme.commands()
    assert len(commands) == 6
    assert commands[1] == f"kubectl create namespace {objects.NAMESPACE}"
    assert commands[-1].startswith("helm test ")
    assert sum(f"--values {readme.VALUES_FILE}" in command for command in commands) == 1
    # Each key of the object store appears in some command.
    named = {word for command in commands for word in KEYS if f'"${word}"' in command}
    assert named == KEYS.keys()


def test_run_sets_every_key_of_the_readme() -> None:
    """A run sets every key of the README's values, possibly to another value."""

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
