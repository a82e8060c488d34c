"""A fingerprint changes with any row, and with nothing else."""

from __future__ import annotations

import pytest
import torch

from secure_fl.privacy import fingerprint as module
from secure_fl.privacy.fingerprint import fingerprint
from secure_fl.tasks.base import LocalData, Split

SALT = bytes(range(32))
X, Y = torch.arange(40.0).reshape(20, 2), torch.arange(20)


def data(x: torch.Tensor = X, y: torch.Tensor = Y, cut: int = 15, groups: torch.Tensor | None = None) -> LocalData:
    def rows(part: slice) -> Split:
        return Split(inputs=x[part], targets=y[part], groups=None if groups is None else groups[part])

    return LocalData(train=rows(slice(0, cut)), test=rows(slice(cut, None)))


def test_neither_order_nor_cut_matters() -> None:
    order = torch.randperm(20, generator=torch.Generator().manual_seed(0))
    first = fingerprint(data(), salt=SALT)
    assert fingerprint(data(X[order], Y[order], cut=7), salt=SALT) == first
    assert len(bytes.fromhex(first)) == 32


def test_every_row_matters_and_how_often_it_occurs() -> None:
    changed = X.clone()
    changed[19, 1] += 1
    twice, relabelled = torch.cat([torch.arange(20), torch.tensor([3])]), Y.clone()
    relabelled[0] = 5
    found = [
        data(),
        data(X[:19], Y[:19]),
        data(changed),
        data(X, relabelled),
        data(X[twice], Y[twice]),
        data(groups=Y),
        data(groups=Y + 1),
        data(X.int(), Y),
    ]
    assert len({fingerprint(each, salt=SALT) for each in found}) == len(found)


def test_only_who_has_the_salt_can_try_rows_out() -> None:
    assert fingerprint(data(), salt=SALT) != fingerprint(data(), salt=SALT[::-1])
    with pytest.raises(ValueError, match="at least 16 bytes"):
        fingerprint(data(), salt=b"short")


def test_rows_are_read_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = fingerprint(data(), salt=SALT)
    monkeypatch.setattr(module, "_CHUNK", 4)
    assert fingerprint(data(), salt=SALT) == whole
