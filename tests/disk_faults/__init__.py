# SPDX-License-Identifier: Apache-2.0
"""Ways in which the machine below a disk tier breaks, done for real: ``python -m tests.disk_faults`` (README.md)."""
