"""Entry point of ``python -m tidemark_broker``."""

import sys

from tidemark.lean_start import exit_on_signals, importing, leave_out_hypothesis

exit_on_signals()
leave_out_hypothesis()

with importing():
    from tidemark_broker.main import main

sys.exit(main())
