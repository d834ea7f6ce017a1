"""``python -m tidemark_operator``."""

import sys

from tidemark.lean_start import importing, leave_out_hypothesis

leave_out_hypothesis()

with importing():
    from tidemark_operator.main import main

sys.exit(main())
