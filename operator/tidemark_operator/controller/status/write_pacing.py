"""Pacing of status writes: never a no-op, and figures that change by themselves once a minute.

Everything except the figures is written at once. So is the first figure of the tier, or its last.
During a disablement its progress may be written every five seconds, because a person watches it.
"""

from collections.abc import Mapping

from tidemark_operator.controller.state.model import Json

FIGURES_MS = 60_000
FIGURES_DISABLING_MS = 5_000
#: Duration below which a deletion is not shown: its status would disappear with the object.
QUIET_DELETION_MS = 5_000
#: Fields that change by themselves, by path.
_FIGURES = frozenset(
    {
        ("tiering", "remoteSegments"),
        ("tiering", "remoteBytes"),
        ("tiering", "remainingSegments"),
        ("tiering", "remainingBytes"),
        ("replicas", "inSync"),
        ("replicas", "summary"),
        ("remoteBytes",),
        ("leaders",),
        ("logBytes",),
        ("lag",),
        ("rows",),
        ("deadLetters",),
        ("lastCommitTime",),
        ("currentTime",),
        ("observedTime",),
        ("lagSeconds",),
        ("exportedOffsets",),
        ("cost",),
        ("topics", "behind"),
        ("topics", "worst"),
    }
)


class Pacer:
    """Time of each object's last status write."""

    def __init__(self) -> None:
        self._written_ms: dict[str, int] = {}

    def should_write(self, key: str, old: Json, new: Json, *, now_ms: int) -> bool:
        """Return whether to write ``new`` over ``old``; if so it counts as written now."""
        if old == new:
            return False
        if without_figures(old) == without_figures(new):
            # A change of figures alone waits; after a takeover the interval starts with the first
            # one.
            last = self._written_ms.setdefault(key, now_ms)
            if now_ms - last < figures_interval_ms(new):
                return False
        self._written_ms[key] = now_ms
        return True

    def forget(self, key: str) -> None:
        self._written_ms.pop(key, None)


def quiet_deletion_ms(deletion_ms: int, *, now_ms: int) -> int:
    """Return how much longer a deletion without problems goes unreported, in milliseconds.
    # The clock may jump back, so a negative age is no reason to wait.

        0 if the API server's clock is ahead.
    """
    age_ms = now_ms - deletion_ms
    return QUIET_DELETION_MS - age_ms if 0 <= age_ms < QUIET_DELETION_MS else 0


def figures_interval_ms(status: Json) -> int:
    tiering = status.get("tiering")
    state = tiering.get("state") if isinstance(tiering, Mapping) else None
    return FIGURES_DISABLING_MS if state == "Disabling" else FIGURES_MS


def without_figures(status: Json) -> Json:
    """Return a status without the figures, but with whether the tier has anything."""
    return {name: _strip(name, value) for name, value in status.items() if (name,) not in _FIGURES}


def _strip(name: str, value: object) -> object:
    if not isinstance(value, Mapping):
        return value
    kept = {inner: item for inner, item in value.items() if (name, inner) not in _FIGURES}
    # The first and the last figure of the tier are more than a figure: they are written at once.
    if name == "tiering":
        kept["anything"] = [inner for inner in sorted(value) if _is_some(value, inner)]
    # So is the moment when all placed replicas are in sync: a topic with placeholders has no
    # condition that changes then.
    if name == "replicas":
        kept["settled"] = value.get("inSync") == value.get("placed")
    return kept


def _is_some(figures: Mapping[str, object], name: str) -> bool:
    return ("tiering", name) in _FIGURES and bool(figures[name])
