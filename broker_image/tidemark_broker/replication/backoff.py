"""Waiting longer after each failure in a row; pure, the clock is an argument."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """``failures`` in a row so far; not to be tried again before ``until_s`` (monotonic)."""

    first_s: float
    most_s: float
    failures: int = 0
    until_s: float = float("-inf")

    def failed(self, now_s: float) -> "Backoff":
        """Doubles the pause with each failure up to ``most_s``."""
        pause = min(self.most_s, self.first_s * 2 ** min(self.failures, 30))
        return Backoff(
            first_s=self.first_s,
            most_s=self.most_s,
            failures=self.failures + 1,
            until_s=now_s + pause,
        )

    def succeeded(self) -> "Backoff":
        """Back to the first pause."""
        return Backoff(first_s=self.first_s, most_s=self.most_s) if self.failures else self

    def ready(self, now_s: float) -> bool:
        """May it be tried now?"""
        return now_s >= self.until_s
