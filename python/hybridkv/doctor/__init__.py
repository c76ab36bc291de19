# SPDX-License-Identifier: Apache-2.0
"""What a report of a fault should contain, what two hosts would take for a hit, and a checklist.

:func:`doctor` gathers the facts of a host, :func:`cache_facts` those of a running cache; :func:`compare` and
:func:`readiness` judge them. `docs/doctor.md` is the guide.
"""

from hybridkv.doctor.cache_facts import cache_facts
from hybridkv.doctor.comparison import compare
from hybridkv.doctor.documents import SCHEMA
from hybridkv.doctor.host import doctor
from hybridkv.doctor.readiness import readiness

__all__ = ["SCHEMA", "cache_facts", "compare", "doctor", "readiness"]
