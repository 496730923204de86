# SPDX-License-Identifier: Apache-2.0
"""Whole models for torch on packed batches, inference only; each needs torch."""
