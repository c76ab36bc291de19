# SPDX-License-Identifier: Apache-2.0
"""A black-box check of a service: does its prefix reuse change its answers?

:func:`probe` asks an OpenAI-compatible service for the same tokens with a hit and from scratch, and compares
log-probabilities at both ends of what follows. `docs/probing.md` is the guide.
"""

from hybridkv.probe.endpoint import EndpointError
from hybridkv.probe.options import ProbeOptions
from hybridkv.probe.report import SCHEMA, ProbeReport
from hybridkv.probe.run import probe
from hybridkv.probe.verdict import EXIT_STATUS, ProbeVerdict

__all__ = ["EXIT_STATUS", "SCHEMA", "EndpointError", "ProbeOptions", "ProbeReport", "ProbeVerdict", "probe"]
