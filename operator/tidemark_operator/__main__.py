"""``python -m tidemark_operator``."""

import sys

from tidemark.lean_start import leave_out_hypothesis

leave_out_hypothesis()

from tidemark_operator.main import main  # noqa: E402

sys.exit(main())
