"""Strategies: one file each, node half and coordinator half side by side; `base` has the contract."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from secure_fl.aggregation import RequestKind
from secure_fl.settings import require_known
from secure_fl.strategies.base import LocalTraining, Strategy

# Loaded by name: the node's main process and the command line stay free of torch until somebody trains.
_BUILT_IN: dict[str, str] = {
    "aifed": "secure_fl.strategies.aifed:AiFed",
    "ditto": "secure_fl.strategies.ditto:Ditto",
    "fedala": "secure_fl.strategies.fedala:FedALA",
    "fedamp": "secure_fl.strategies.fedamp:FedAMP",
    "fedasa": "secure_fl.strategies.fedasa:FedASA",
    "fedasync": "secure_fl.strategies.fedasync:FedAsync",
    "fedavg": "secure_fl.strategies.fedavg:FedAvg",
    "fedbuff": "secure_fl.strategies.fedbuff:FedBuff",
    "fedcca": "secure_fl.strategies.fedcca:FedCCA",
    "fedopt": "secure_fl.strategies.fedopt:FedOpt",
    "fedper": "secure_fl.strategies.fedper:FedPer",
    "fedprox": "secure_fl.strategies.fedprox:FedProx",
    "fedrep": "secure_fl.strategies.fedrep:FedRep",
    "local": "secure_fl.strategies.local:Local",
    "pfedme": "secure_fl.strategies.pfedme:PFedMe",
    "pflda": "secure_fl.strategies.pflda:PFLDA",
    "pflsensing": "secure_fl.strategies.pflsensing:PFLSensing",
    "tp": "secure_fl.strategies.tp:TrainThenPersonalise",
}


def known() -> tuple[str, ...]:
    """Ids of the strategies this version has."""
    return tuple(_BUILT_IN)


def create(name: str, settings: Mapping[str, Any]) -> Strategy:
    """The strategy with this id and these settings; `UnknownNameError` or `SettingsError` otherwise."""
    require_known("strategy", name, _BUILT_IN)
    cls = _class(name)
    return cls(cls.Settings.parse(settings, where="strategy"))


def asks(name: str) -> RequestKind:
    """What the strategy with this id asks for; a sum, where there is none."""
    if name not in _BUILT_IN:
        return RequestKind.SUM
    return _class(name).asks


def defaults(name: str) -> Mapping[str, Any]:
    """What the strategy with this id suggests for studies that do not say; nothing, where there is none."""
    return _class(name).defaults if name in _BUILT_IN else {}


def settings(name: str) -> type[LocalTraining]:
    """The settings that the strategy with this id has; those that all have, where there is none."""
    return _class(name).Settings if name in _BUILT_IN else LocalTraining


def _class(name: str) -> type[Strategy]:
    module, _, attribute = _BUILT_IN[name].partition(":")
    cls: type[Strategy] = getattr(import_module(module), attribute)
    return cls


def register(name: str, target: str) -> None:
    """Add a strategy as `module:attribute`. For code that runs in this process; a study cannot do this."""
    _BUILT_IN[name] = target
