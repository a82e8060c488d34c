"""Strategies: one file each, node half and coordinator half side by side; `base` has the contract.

A study names a strategy, and this registry finds the code that is installed here under that name: built in, or of a
package with an entry point in the group `secure_fl.strategies`. A study never makes anybody import a module of its own
choosing.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from typing import Any

from secure_fl.aggregation import RequestKind
from secure_fl.entry_points import offered
from secure_fl.errors import SettingsError
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
_HERE: dict[str, type[Strategy]] = {}  # classes of this process, such as one in a notebook's cell
ENTRY_POINTS = "secure_fl.strategies"


def known() -> tuple[str, ...]:
    """Ids of the strategies installed here: built in, offered by an installed package, or added in this process."""
    return tuple(_installed())


def is_built_in(name: str) -> bool:
    """Whether a strategy comes with secure-fl itself."""
    return _BUILT_IN.get(name, "").startswith(f"{__name__}.")


def is_in_process(name: str) -> bool:
    """Whether a strategy was added by code that runs in this process: no other process has it."""
    return name in _HERE or (name in _BUILT_IN and not is_built_in(name))


def create(name: str, settings: Mapping[str, Any]) -> Strategy:
    """The strategy with this id and these settings; `UnknownNameError` or `SettingsError` otherwise."""
    cls = resolve(name)
    return cls(cls.Settings.parse(settings, where="strategy"))


def asks(name: str) -> RequestKind:
    """What the strategy with this id asks for; a sum, where there is none."""
    return resolve(name).asks if name in _BUILT_IN or name in _installed() else RequestKind.SUM


def defaults(name: str) -> Mapping[str, Any]:
    """What the strategy with this id suggests for studies that do not say; nothing, where there is none."""
    return resolve(name).defaults if name in _BUILT_IN or name in _installed() else {}


def settings(name: str) -> type[LocalTraining]:
    """The settings that the strategy with this id has; those that all have, where there is none."""
    return resolve(name).Settings if name in _BUILT_IN or name in _installed() else LocalTraining


def resolve(name: str) -> type[Strategy]:
    """The strategy with this id; `UnknownNameError` where there is none, `SettingsError` where its code fails."""
    if name in _HERE:
        return _HERE[name]
    if name in _BUILT_IN:  # first: finding out what is installed takes milliseconds
        module, _, attribute = _BUILT_IN[name].partition(":")
        built_in: type[Strategy] = getattr(import_module(module), attribute)
        return built_in
    installed = _installed()
    require_known("strategy", name, installed)
    module, _, attribute = installed[name].partition(":")
    try:
        found = attrgetter(attribute)(import_module(module))
    except (Exception, SystemExit) as error:  # A module may fail to import in any way it likes, or want to exit.
        raise SettingsError(
            f"strategy {name!r}: {installed[name]} cannot be imported here ({type(error).__name__})",
            advice="install the package that provides it again, or another version of it",
        ) from error
    return require_strategy(found, name)


def require_strategy(found: object, name: str) -> type[Strategy]:
    """`found`, if it is a complete strategy; `SettingsError` otherwise."""
    if not (inspect.isclass(found) and issubclass(found, Strategy)):
        raise SettingsError(f"strategy {name!r} is not a subclass of secure_fl.strategies.base.Strategy")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise SettingsError(f"strategy {name!r} does not define {missing}", advice="see docs/strategies/own.md")
    return found


def _installed() -> dict[str, str]:
    """Id → `module:attribute` of every strategy here."""
    # Built-in names win: installing a package must not change what a policy that allows "fedavg" means.
    return offered(ENTRY_POINTS, "strategy") | _BUILT_IN | dict.fromkeys(_HERE, "")


def register(name: str, target: str) -> None:
    """Add a strategy as `module:attribute`. For code that runs in this process; a study cannot do this."""
    _BUILT_IN[name] = target


def add(strategy: type[Strategy]) -> str:
    """Make a class known in this process, by the name that this returns. One defined anew takes the older one's place.

    Raises `SettingsError` for a name that an installed strategy has: a study would mean another one elsewhere.
    """
    name = getattr(strategy, "name", "")
    require_strategy(strategy, name or getattr(strategy, "__qualname__", str(strategy)))
    if "name" not in vars(strategy):
        raise SettingsError(
            f"strategy {strategy.__qualname__} has no name of its own", advice='write name = "..." in the class'
        )
    if name not in _HERE and name in _installed():
        if resolve(name) is strategy:
            return name
        raise SettingsError(f"a strategy {name!r} is installed already", advice="give the class another name")
    _HERE[name] = strategy
    return name
