"""Entry point of ``python -m tidemark_broker``."""

import sys

from tidemark.lean_start import importing, leave_out_hypothesis

leave_out_hypothesis()

with importing():
    from tidemark_broker.main import main

sys.exit(main())
