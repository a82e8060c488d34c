"""Protections: how an update leaves a node. State machines without I/O; `base` has the contract."""

from __future__ import annotations

from importlib import import_module

from secure_fl.protect.base import Protection
from secure_fl.settings import require_known

# Loaded by name, so that nothing heavy (TenSEAL, say) is imported before it is used.
_BUILT_IN: dict[str, str] = {
    "none": "secure_fl.protect.none:UnsafeNone",
    "masked": "secure_fl.protect.masked:Masked",
    "sealed": "secure_fl.protect.sealed:Sealed",
}


def known() -> tuple[str, ...]:
    """Ids of the protections this version has."""
    return tuple(_BUILT_IN)


def resolve(name: str) -> Protection:
    """The protection with this id; `UnknownNameError` otherwise."""
    require_known("protection", name, _BUILT_IN)
    module, _, attribute = _BUILT_IN[name].partition(":")
    protection: Protection = getattr(import_module(module), attribute)()
    return protection


def register(name: str, target: str) -> None:
    """Add a protection as `module:attribute`. For code that runs in this process; a study cannot do this."""
    _BUILT_IN[name] = target
