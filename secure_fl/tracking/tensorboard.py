"""TensorBoard, through torch's own writer of its event files."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from secure_fl.errors import SettingsError, StorageError


class TensorBoardWriter:
    """Event files in a folder for each run. Raises `StorageError` where they cannot be written."""

    def __init__(self, target: str, name: str, settings: Mapping[str, Any]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise SettingsError(
                "TensorBoard is not installed here",
                advice='pip install tensorboard, or pip install "secure-fl[tracking]"',
            ) from None
        self._target = target
        with self._writing():
            self._writer: Any = SummaryWriter(str(Path(target) / name))
            self._writer.add_text("study", f"```\n{json.dumps(settings, indent=1)}\n```")

    def write(self, values: Mapping[str, float], *, step: int) -> None:
        """Write named numbers of one version of the model."""
        with self._writing():
            for name, value in values.items():
                self._writer.add_scalar(name, value, step)
            self._writer.flush()  # who watches sees a round when it is over

    def close(self, *, finished: bool) -> None:  # noqa: ARG002
        """Close the file."""
        with self._writing():
            self._writer.close()

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StorageError(
                f"{self._target}: TensorBoard's files cannot be written ({error.strerror or type(error).__name__})",
                advice="check the folder of --track tensorboard:DIR, and that there is space",
            ) from error
