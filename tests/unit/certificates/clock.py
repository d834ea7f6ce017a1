"""Wall clock that the test sets."""

import datetime as dt

NOW = dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


class CertificateClock:
    def __init__(self) -> None:
        self.now = NOW

    def __call__(self) -> dt.datetime:
        return self.now
