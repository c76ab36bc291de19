# SPDX-License-Identifier: Apache-2.0
"""``python -m tests.disk_faults [--short] [part ...]`` from the root of the repository prints the summary."""

import sys

from .table import main

sys.exit(main(sys.argv[1:]))
