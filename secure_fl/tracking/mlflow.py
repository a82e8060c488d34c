"""MLflow, by its client: a notebook's own tracking URI and active run stay as they are."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from secure_fl.errors import NetworkError, SettingsError

EXPERIMENT = "secure-fl"
_LONGEST_VALUE = 500  # of a parameter, at MLflow's servers


class MlflowWriter:
    """One run in the experiment `secure-fl`. Raises `NetworkError` where it cannot be written."""

    def __init__(self, target: str, name: str, settings: Mapping[str, Any]) -> None:
        # MLflow counts its use at its makers' server. That a federation runs is nobody's business, unless whoever runs
        # it says so; where MLflow was imported before, it has decided already.
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        try:
            from mlflow import MlflowClient
            from mlflow.exceptions import MlflowException
        except ImportError:
            raise SettingsError(
                "MLflow is not installed here", advice='pip install mlflow-skinny, or pip install "secure-fl[tracking]"'
            ) from None
        self._target, self._failures = target, (MlflowException, OSError)
        with self._writing():
            self._client: Any = MlflowClient(tracking_uri=target)
            experiment = self._client.get_experiment_by_name(EXPERIMENT)
            number = self._client.create_experiment(EXPERIMENT) if experiment is None else experiment.experiment_id
            self._run: str = self._client.create_run(number, run_name=name).info.run_id
            for key, value in _flat(settings):
                self._client.log_param(self._run, key, str(value)[:_LONGEST_VALUE])

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Write named numbers of one version of the model."""
        with self._writing():
            for name, value in values.items():
                self._client.log_metric(self._run, name, value, step=step)

    def close(self, *, finished: bool) -> None:
        """End the run."""
        with self._writing():
            self._client.set_terminated(self._run, status="FINISHED" if finished else "FAILED")

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            raise NetworkError(
                f"MLflow at {self._target!r} cannot be used ({type(error).__name__})",
                advice="check the URI of --track mlflow:URI",
            ) from error


def _flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in settings.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
