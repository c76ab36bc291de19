# SPDX-License-Identifier: Apache-2.0
"""Bytes that nobody would write, for everything here that reads bytes of others."""
