"""The tasks installed at this site, by name.

A study names a task; this registry finds the code that the site installed under that name. Asking what is
known imports neither torch nor any task.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from importlib import import_module
from operator import attrgetter
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from secure_fl.entry_points import offered
from secure_fl.errors import SecureFLError, TaskUnavailableError, UnknownNameError
from secure_fl.settings import require_known
from secure_fl.tasks import files, in_process, own_code

if TYPE_CHECKING:
    from secure_fl.tasks.base import Task

BUILT_IN: Mapping[str, str] = {
    "digits": "secure_fl.tasks.digits:Digits",
    "breast-cancer": "secure_fl.tasks.breast_cancer:BreastCancer",
    "mnist": "secure_fl.tasks.mnist:Mnist",
    "fashion": "secure_fl.tasks.fashion:Fashion",
    "cifar10": "secure_fl.tasks.cifar10:Cifar10",
    "sine": "secure_fl.tasks.sine:Sine",
    "heart": "secure_fl.tasks.heart:Heart",
    "printers": "secure_fl.tasks.printers:Printers",
    "bearings": "secure_fl.tasks.bearings:Bearings",
    "agnews": "secure_fl.tasks.agnews:AgNews",
    "visits": "secure_fl.tasks.visits:Visits",
}
ENTRY_POINTS = "secure_fl.tasks"


def known() -> tuple[str, ...]:
    """The ids of the tasks installed here: built in, or offered by an installed package."""
    return tuple(sorted(_installed()))


def is_installed_id(name: str) -> bool:
    """Whether `name` is the id of an installed task.

    False for `module:attribute`: such a name makes the site import a module of the study's choosing, so a
    site's policy must list it before it is resolved.
    """
    return name in _installed()


def resolve(name: str) -> type[Task]:
    """The task called `name`: an installed id, or `module:attribute`.

    Raises `UnknownNameError` for an unknown id, `TaskUnavailableError` when the code is missing here or no task, and
    `CodeChangedError` for a file that is another than the site agreed to.
    """
    if (here := in_process.find(name)) is not None:
        return here if isinstance(here, type) else type(here)
    installed = _installed()
    # Ids first, as in `is_installed_id`: what a policy was asked about is what is imported.
    if name in installed:
        return _load(name, installed[name])
    _require_no_file(name)
    if ":" not in name:
        try:
            require_known("task", name, installed)
        except UnknownNameError as error:
            error.hint += "; a task of your own has to be installed here (docs/tasks.md)"
            raise
    return _load(name, name)


def require_spelling(name: str) -> None:
    """Raise `TaskUnavailableError` for a name that can be nobody's. What is spelt well need not be here."""
    if name in _installed():
        return
    _require_no_file(name)
    module, separator, attribute = name.partition(":")
    if separator and not all(part.isidentifier() for part in (*module.split("."), *attribute.split("."))):
        raise TaskUnavailableError(f"task {name!r} is not module:attribute", advice="for example wards:Wards")


def _require_no_file(name: str) -> None:
    path, _, attribute = name.partition(":")
    if not path.endswith(".py") or files.is_registered(name):
        return
    module, folder = PurePath(path).stem, PurePath(path).parent
    meant = f"{module}:{attribute or ''.join(part.capitalize() for part in module.split('_'))}"
    there = f"; run the command in the folder {folder}" if folder.name else ""
    raise TaskUnavailableError(
        f"task {name!r} names a file; did you mean {meant!r}?", advice=f"a study names module:attribute{there}"
    )


def module_of(name: str) -> str:
    """The module that the task called `name` would be imported from. Nothing is imported."""
    return _installed().get(name, name).partition(":")[0]


def create(name: str, settings: Mapping[str, Any]) -> Task:
    """The task called `name` with validated `settings`; raises as `resolve` does, or names the wrong key.

    What the task says of itself is looked at, too: `TaskUnavailableError` where it cannot be used.
    """
    here = in_process.find(name)
    if here is not None and not isinstance(here, type):
        # With data of its own; its settings went into the study when it was added.
        return own_code.require_declared(name, here)
    task = resolve(name)
    own_code.require_settings(name, task)
    parsed = task.Settings.parse(settings, where="task")
    made = own_code.run_own(lambda: task(parsed), "__init__", advice=own_code.mend(task))
    return own_code.require_declared(name, made)


def _installed() -> dict[str, str]:
    """Id → `module:attribute` of every installed task."""
    # Built-in names win: installing a package must not change what a policy that allows "digits" means.
    return offered(ENTRY_POINTS, "task") | dict(BUILT_IN)


def _load(name: str, target: str) -> type[Task]:
    from secure_fl.tasks.base import Task

    module, _, attribute = target.partition(":")
    try:
        loaded = files.load_module(name) if files.is_registered(name) else import_module(module)
    except SecureFLError:
        raise
    except (Exception, SystemExit) as error:  # A module may fail to import in any way it likes, or want to exit.
        raise TaskUnavailableError(
            f"task {name!r}: module {module!r} cannot be imported here ({type(error).__name__})",
            advice="install the package that provides it on this machine; `secure-fl task check` says what fails",
        ) from error
    try:
        found = attrgetter(attribute)(loaded)
    except AttributeError:
        # Python takes a folder of that name for a module, too, and an empty one. Its own modules have no file, either.
        folder = getattr(loaded, "__file__", None) is None and hasattr(loaded, "__path__")
        raise TaskUnavailableError(
            f"task {name!r}: module {module!r} has no {attribute!r}" + (" (it is a folder)" if folder else ""),
            advice=f"run the command in the folder {module}" if folder else "correct the name after the colon",
        ) from None
    if not (inspect.isclass(found) and issubclass(found, Task)):
        raise TaskUnavailableError(f"task {name!r}: {target} is not a subclass of secure_fl.tasks.base.Task")
    if inspect.isabstract(found):
        missing = ", ".join(sorted(found.__abstractmethods__))
        raise TaskUnavailableError(f"task {name!r}: {target} does not define {missing}")
    return found
