# SPDX-License-Identifier: Apache-2.0
"""``python -m hybridkv``: the command line."""

from __future__ import annotations

import sys

from hybridkv.cli import main

if __name__ == "__main__":
    sys.exit(main())
