# SPDX-License-Identifier: Apache-2.0
"""Adapters: hybridkv behind the caches of other packages, each imported only where its package is."""
