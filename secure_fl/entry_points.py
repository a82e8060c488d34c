"""What installed packages offer: tasks and strategies, by the names under which studies ask for them."""

from __future__ import annotations

from importlib import metadata

from secure_fl.errors import SettingsError


def offered(group: str, what: str) -> dict[str, str]:
    """Name → `module:attribute` of a group's entry points. Raises `SettingsError` where two packages differ."""
    targets: dict[str, str] = {}
    for point in metadata.entry_points(group=group):
        target = f"{point.module}:{point.attr}"
        if targets.setdefault(point.name, target) != target:
            raise SettingsError(
                f"two installed packages offer a {what} {point.name!r}: {targets[point.name]} and {target}",
                advice="uninstall one of them here",
            )
    return targets
