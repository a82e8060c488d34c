"""Curves of a run in the tools people already look at: `secure-fl run --track tensorboard:DIR`, `mlflow:URI`.

A tracker hears of every committed round. It is told means over sites, and values of single sites only where the study
says `[metrics] share = "per-node"`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Protocol, Self

from secure_fl.errors import SettingsError
from secure_fl.events import Event, RoundCommitted
from secure_fl.results.record import RoundRecord
from secure_fl.settings import require_known
from secure_fl.threads import in_thread_whole
from secure_fl.tracking.scalars import scalars


class Writer(Protocol):
    """One tool."""

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Write named numbers of one version of the model."""
        ...

    def close(self, *, finished: bool) -> None:
        """The run is over; `finished` says whether it reached its end."""
        ...


Maker = Callable[[str, str, Mapping[str, Any]], Writer]  # where to, the run's name, the study's settings


def _tensorboard(target: str, name: str, settings: Mapping[str, Any]) -> Writer:
    from secure_fl.tracking.tensorboard import TensorBoardWriter

    return TensorBoardWriter(target, name, settings)


def _mlflow(target: str, name: str, settings: Mapping[str, Any]) -> Writer:
    from secure_fl.tracking.mlflow import MlflowWriter

    return MlflowWriter(target, name, settings)


KINDS: Mapping[str, Maker] = {"tensorboard": _tensorboard, "mlflow": _mlflow}


class Tracking:
    """All writers of a run. Use it as a context; what leaves the context with an error did not finish."""

    def __init__(self, wanted: Iterable[str], *, name: str, settings: Mapping[str, Any], per_site: bool) -> None:
        self._wanted = tuple(wanted)
        self._name = name
        self._settings = settings
        self._per_site = per_site
        self._writers: list[Writer] = []

    def open(self) -> None:
        """Begin to write. Not before the study is checked: a mistake in it should leave no empty curves.

        Raises `SettingsError`, `StorageError` or `NetworkError` where a tool is not there or cannot write.
        """
        for target in self._wanted:
            self._writers.append(_make(target, self._name, self._settings))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with ExitStack() as closing:
            for writer in self._writers:
                closing.callback(writer.close, finished=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: object, *_: object) -> None:
        await in_thread_whole(self.__exit__, kind)  # A tool that is far away must not hold up the caller's loop.

    def listen(self, event: Event) -> None:
        """Write down a committed round."""
        if isinstance(event, RoundCommitted):
            self._committed(event.record)

    def _committed(self, record: RoundRecord) -> None:
        for step, values in scalars(record, per_site=self._per_site).items():
            for writer in self._writers:
                writer.write(values, step=step)


def check(wanted: Iterable[str]) -> None:
    """Raise `SettingsError` for what is no `kind:target`, before anything is run."""
    for target in wanted:
        kind, colon, where = target.partition(":")
        if not colon or not where:
            raise SettingsError(
                f"--track {target!r}: expected tensorboard:DIR or mlflow:URI",
                advice="for example --track tensorboard:runs/curves or --track mlflow:sqlite:///mlflow.db",
            )
        require_known("tracker", kind, KINDS)


def _make(target: str, name: str, settings: Mapping[str, Any]) -> Writer:
    check([target])
    kind, _, where = target.partition(":")
    return KINDS[kind](where, name, settings)
