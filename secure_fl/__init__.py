"""secure-fl: federated learning in which nobody ever sees one site's update.

The names below are the Python API (docs/python.md). Each is loaded when it is first used: `import secure_fl` alone
imports neither torch nor anything else of weight.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from secure_fl.api.models import load_model
    from secure_fl.api.operator import Operator
    from secure_fl.api.run import Run
    from secure_fl.api.simulate import simulate, simulate_async
    from secure_fl.study.settings import Study

__version__ = "0.1.0"

# gRPC's core writes lines of its own to standard error. What went wrong reaches our errors and logs, in our words.
# It reads this when it is loaded, so it stands before anything that imports it. Whoever sets it sees gRPC's lines.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

__all__ = ["Operator", "Run", "Study", "__version__", "load_model", "simulate", "simulate_async"]

_HOMES = {
    "Operator": "secure_fl.api.operator",
    "Run": "secure_fl.api.run",
    "Study": "secure_fl.study.settings",
    "load_model": "secure_fl.api.models",
    "simulate": "secure_fl.api.simulate",
    "simulate_async": "secure_fl.api.simulate",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOMES})
