"""`python -m sublet` is `sublet`."""

import sys

from sublet.cli import main

sys.exit(main())
