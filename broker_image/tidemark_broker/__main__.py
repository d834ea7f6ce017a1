"""Entry point of ``python -m tidemark_broker``."""

import sys

from tidemark.lean_start import leave_out_hypothesis

leave_out_hypothesis()

from tidemark_broker.main import main  # noqa: E402

sys.exit(main())
