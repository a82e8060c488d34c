"""Bounds that a coordinator's own file sets."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.service import Coordinator
from secure_fl.errors import ModelTooLargeError
from secure_fl.study.settings import Study


@pytest.mark.parametrize(("model_bytes", "fits"), [(4 * 17258, True), (4 * 17258 - 1, False)])
def test_a_study_whose_model_is_too_large_is_not_taken_up(tmp_path: Path, model_bytes: int, fits: bool) -> None:
    study = Study.parse({"task": {"name": "digits"}}).completed()
    assert study.check().size == 17258
    coordinator = Coordinator(tmp_path, model_bytes=model_bytes)
    if fits:
        assert coordinator.prepare(study).outcome == "running"
    else:
        with pytest.raises(ModelTooLargeError, match="more than the"):
            coordinator.prepare(study)
        assert not coordinator.runners
