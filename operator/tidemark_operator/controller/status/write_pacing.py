"""When a status is written: never a no-op, and figures that move on their own once a minute.

Everything but the figures is written at once, and so is the first that the tier has, or the last
that it had. During a disablement its progress may be written
every five seconds: somebody is watching it.
"""

from collections.abc import Mapping

from tidemark_operator.controller.model import Json

FIGURES_MS = 60_000
FIGURES_DISABLING_MS = 5_000
#: A deletion that is over sooner says nothing: its status would be gone with it.
QUIET_DELETION_MS = 5_000
#: Fields that move on their own, by path.
_FIGURES = frozenset(
    {
        ("tiering", "remoteSegments"),
        ("tiering", "remoteBytes"),
        ("tiering", "remainingSegments"),
        ("tiering", "remainingBytes"),
        ("replicas", "inSync"),
        ("remoteBytes",),
        ("leaders",),
        ("logBytes",),
        ("lag",),
        ("rows",),
        ("deadLetters",),
        ("lastCommitTime",),
        ("currentTime",),
    }
)


class Pacer:
    """Remembers when each object's status was last worth a write."""

    def __init__(self) -> None:
        self._written_ms: dict[str, int] = {}

    def should_write(self, key: str, old: Json, new: Json, *, now_ms: int) -> bool:
        """Whether ``new`` is to be written over ``old``; if so it counts as written now."""
        if old == new:
            return False
        if without_figures(old) == without_figures(new):
            last = self._written_ms.setdefault(key, now_ms)
            if now_ms - last < figures_interval_ms(new):
                return False
        self._written_ms[key] = now_ms
        return True

    def forget(self, key: str) -> None:
        self._written_ms.pop(key, None)


def quiet_deletion_ms(deletion_ms: int, *, now_ms: int) -> int:
    """How much longer a deletion that goes well has to take before its status is written; 0 where
    the API server's clock is ahead of ours."""
    age_ms = now_ms - deletion_ms
    return QUIET_DELETION_MS - age_ms if 0 <= age_ms < QUIET_DELETION_MS else 0


def figures_interval_ms(status: Json) -> int:
    tiering = status.get("tiering")
    state = tiering.get("state") if isinstance(tiering, Mapping) else None
    return FIGURES_DISABLING_MS if state == "Disabling" else FIGURES_MS


def without_figures(status: Json) -> Json:
    """A status without the fields that move on their own; of the tier's, whether there is
    anything."""
    return {name: _strip(name, value) for name, value in status.items() if (name,) not in _FIGURES}


def _strip(name: str, value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    kept = {inner: item for inner, item in value.items() if (name, inner) not in _FIGURES}
    if name == "tiering":
        kept["anything"] = [inner for inner in sorted(value) if _is_some(value, inner)]
    return kept


def _is_some(figures: Mapping[str, object], name: str) -> bool:
    return ("tiering", name) in _FIGURES and bool(figures[name])
