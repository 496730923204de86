# SPDX-License-Identifier: Apache-2.0
"""What this build is and can do."""

from __future__ import annotations

import platform
import sys
from typing import Any

import numpy as np
import tvm_ffi

from . import _native
from ._implementations import implementations
from ._options import OP

__version__ = str(_native.version())


def info() -> dict[str, Any]:
    """Versions and implementations, as one would put them into a bug report."""
    torch = sys.modules.get("torch")
    return {
        "packattn": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tvm_ffi": tvm_ffi.__version__,
        "torch": None if torch is None else str(torch.__version__),
        "implementations": {op: implementations(op) for op in OP},
        "error_records": len(_native.records()),
    }
