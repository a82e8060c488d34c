"""Protections: how an update leaves a node. State machines without I/O; `contract` is where to begin."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from secure_fl.aggregation import RequestKind
from secure_fl.protect.contract import Protection
from secure_fl.settings import require_known

# Loaded by name, so that nothing heavy (TenSEAL, say) is imported before it is used.
_BUILT_IN: dict[str, str] = {
    "none": "secure_fl.protect.none:UnsafeNone",
    "masked": "secure_fl.protect.masked.protection:Masked",
    "sealed": "secure_fl.protect.sealed.protection:Sealed",
    "encrypted": "secure_fl.protect.encrypted.protection:Encrypted",
}
# With `protection.recovery`: those that need other messages to open a sum without somebody who dropped out.
_RECOVERING: dict[str, str] = {"masked": "secure_fl.protect.recovery.protection:MaskedWithRecovery"}


def known() -> tuple[str, ...]:
    """Ids of the protections this version has."""
    return tuple(_BUILT_IN)


def describe(name: str, *, recovery: bool = False) -> type[Protection]:
    """The class with this id, for what is the same in every study; `UnknownNameError` otherwise."""
    require_known("protection", name, _BUILT_IN)
    target = _RECOVERING.get(name, _BUILT_IN[name]) if recovery else _BUILT_IN[name]
    module, _, attribute = target.partition(":")
    protection: type[Protection] = getattr(import_module(module), attribute)
    return protection


def create(name: str, settings: Mapping[str, Any], *, recovery: bool = False) -> Protection:
    """The protection with this id and these settings of its own; `UnknownNameError` or `SettingsError` otherwise."""
    cls = describe(name, recovery=recovery)
    return cls(cls.Settings.parse(settings, where="protection"))


def suitable(kind: RequestKind) -> str:
    """The protection of a study that names none: the first that serves `kind` and hides updates."""
    return next(name for name in hiding() if describe(name).serves(kind))


def hiding() -> tuple[str, ...]:
    """Ids of those that show no update to the coordinator: what a site allows that says nothing else.

    Not those that rest on more trust than that: a site names them itself.
    """
    kinds = {name: describe(name) for name in _BUILT_IN}
    return tuple(name for name, kind in kinds.items() if not (kind.coordinator_sees_updates or kind.by_name_only))


def register(name: str, target: str, *, recovering: str = "") -> None:
    """Add a protection as `module:attribute`, with another one for recovery where it needs other messages for that.

    For code that runs in this process; a study cannot do this.
    """
    _BUILT_IN[name] = target
    _RECOVERING[name] = recovering or target
