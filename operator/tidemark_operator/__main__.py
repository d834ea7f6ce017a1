"""Entry point of ``python -m tidemark_operator``."""

import sys

from tidemark.lean_start import exit_on_signals, importing, leave_out_hypothesis

exit_on_signals()
leave_out_hypothesis()

with importing():
    from tidemark_operator.process import main

sys.exit(main())
