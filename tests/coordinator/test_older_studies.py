"""After an upgrade: studies of an older version stay behind, and all others go on."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from coordinator.service import Coordinator
from coordinator.store import Store
from secure_fl.errors import SettingsError
from tests.protect.rosters import study


def test_a_study_of_an_older_version_is_left_and_the_others_are_taken_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.in_folder(tmp_path)
    current = study()
    store.add_study("ab" * 32, current.canonical().replace(b'"version":6', b'"version":1'), now=1.0)
    store.add_study(current.id, current.canonical(), now=2.0)
    coordinator = Coordinator(tmp_path, store=store)
    with caplog.at_level(logging.ERROR):
        coordinator.resume()
    assert list(coordinator.runners) == [current.id]
    assert "study abababababab is not taken up: the study was made by an older version" in caplog.text
    assert "submit it again" in caplog.text
    store.close()


@pytest.mark.parametrize("state", ["running", "finished"])
def test_so_is_one_whose_parts_this_version_does_not_run_together(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    store = Store.in_folder(tmp_path)
    current = study()
    unfit = study(rounds={"mode": "buffered", "unit": "site"})  # under `none`
    with pytest.raises(SettingsError):
        unfit.check_parts()
    for number, each in enumerate((unfit, current)):
        store.add_study(each.id, each.canonical(), now=float(number))
    if state == "finished":
        store.end_study(unfit.id, state="finished")
    coordinator = Coordinator(tmp_path, store=store)
    with caplog.at_level(logging.ERROR):
        coordinator.resume()
    assert list(coordinator.runners) == [current.id]
    assert f"study {unfit.id[:12]} is not taken up: rounds.unit" in caplog.text
    store.close()
