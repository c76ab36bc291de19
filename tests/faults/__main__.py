# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.faults [architecture ...]`` from the root of the repository prints the kit as tables."""

import sys

from .show import main

sys.exit(main(sys.argv[1:]))
