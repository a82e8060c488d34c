"""A task that reads files says, in one line, which ones it expects where."""

from __future__ import annotations

from pathlib import Path

import pytest

from secure_fl.errors import DataError
from secure_fl.tasks import BUILT_IN, create
from secure_fl.tasks.base import Source

READERS = sorted(set(BUILT_IN) - {"sine"})


@pytest.mark.parametrize("name", READERS)
def test_a_site_without_a_file_is_told_what_to_set(name: str) -> None:
    with pytest.raises(DataError, match="this site has no data file") as caught:
        create(name, {}).load(Source())
    assert "[datasets.ID]" in caught.value.hint
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", READERS)
def test_a_path_that_leads_nowhere_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.*: no such file.*; expected ") as caught:
        create(name, {}).load(Source(path=tmp_path / "absent.npz"))
    assert "\n" not in caught.value.message


@pytest.mark.parametrize("name", READERS)
def test_a_format_that_the_task_does_not_read_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "own.parquet").touch()
    with pytest.raises(DataError, match="format 'parquet' is not supported; expected "):
        create(name, {}).load(Source(path=tmp_path / "own.parquet", format="parquet"))


@pytest.mark.parametrize("name", READERS)
def test_an_empty_file_and_an_empty_folder_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "own.npz").touch()
    for path in (tmp_path / "own.npz", tmp_path):
        with pytest.raises(DataError, match="expected "):
            create(name, {}).load(Source(path=path))
