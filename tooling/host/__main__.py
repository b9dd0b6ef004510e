"""Run as `python3 -m tooling.host`, or as the one file that `bundle.py` makes."""

import sys

if sys.version_info < (3, 9):
    sys.exit("error: Python 3.9 or newer is needed on the host, this is " + sys.version.split()[0])

from tooling.host.cli import main

sys.exit(main())
