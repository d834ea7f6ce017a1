"""Entry point of ``python -m tidemark_operator``."""

import sys

from tidemark.lean_start import end_when_told, importing, leave_out_hypothesis

end_when_told()
leave_out_hypothesis()

with importing():
    from tidemark_operator.main import main

sys.exit(main())
