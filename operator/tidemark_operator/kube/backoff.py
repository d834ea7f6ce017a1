"""How long to wait before the next try: exponential, with a ceiling and with jitter.

Pure: the caller passes the random number, so that a test knows the delays.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Backoff:
    """Delays in seconds: ``first_s``, doubled at each failure, never above ``most_s``."""

    first_s: float = 0.2
    most_s: float = 30.0

    def delay_s(self, failures: int, jitter: float = 0.5) -> float:
        """The wait after the ``failures``-th failure in a row (from 1); ``jitter`` in [0, 1)
        takes up to a quarter off, so that many keys do not come back at once."""
        exponent = min(max(failures, 1) - 1, 30)
        whole = min(self.first_s * float(2**exponent), self.most_s)
        return whole * (1.0 - 0.25 * jitter)
