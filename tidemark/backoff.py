"""Exponential back-off with a ceiling, and with jitter where many callers retry.

Pure: clock and chance are arguments. A :class:`Backoff` is the rule and, for a caller that counts
its failures, their number so far.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Pauses in seconds: ``first_s``, doubled at each failure in a row, at most ``most_s``.

    After ``failures`` failures nothing is tried before ``until_s`` (monotonic).
    """

    first_s: float
    most_s: float
    failures: int = 0
    until_s: float = float("-inf")

    def pause_s(self, failures: int, *, jitter: float = 0.0) -> float:
        """Return the pause after this number of failures in a row (from 1).

        ``jitter`` in [0, 1) subtracts up to a quarter, so that callers do not return at the same
        time.
        """
        # Bounded, because a power of two overflows a float after a thousand failures.
        exponent = min(max(failures, 1) - 1, 30)
        return min(self.first_s * float(2**exponent), self.most_s) * (1.0 - 0.25 * jitter)

    def failed(self, now_s: float) -> "Backoff":
        """Return the state after one more failure."""
        failures = self.failures + 1
        return Backoff(
            first_s=self.first_s,
            most_s=self.most_s,
            failures=failures,
            until_s=now_s + self.pause_s(failures),
        )

    def succeeded(self) -> "Backoff":
        """Return the state with the first pause."""
        return Backoff(first_s=self.first_s, most_s=self.most_s) if self.failures else self

    def ready(self, now_s: float) -> bool:
        """Return whether the next attempt is due."""
        return now_s >= self.until_s
