# SPDX-License-Identifier: Apache-2.0
"""The rules of the house: each module holds one subject as functions of a tree, returning what is wrong."""
