"""News items: hashed alike everywhere, padded, and learnt from their words."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path

import numpy as np
import pytest
import torch

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks import create
from secure_fl.tasks.agnews import AgNews, AgNewsSettings, MeanEmbedding
from secure_fl.tasks.base import Source, Task
from secure_fl.tasks.model_blocks import layout_of
from tests.tasks.learning import train
from tests.tasks.sources import real, share_of

WORDS = (("minister", "treaty"), ("goal", "match"), ("shares", "profit"), ("software", "probe"))


def write(path: Path, n: int = 200) -> Path:
    rng = np.random.default_rng(0)
    with path.open("w", newline="") as file:
        out = csv.writer(file, quoting=csv.QUOTE_ALL)
        for row in range(n):
            noise = " ".join(f"word{number}" for number in rng.integers(0, 50, 6))
            out.writerow(
                [row % 4 + 1, f"Item {row}", f"{noise} {rng.choice(WORDS[row % 4]).upper()}, again\\and so on"]
            )
    return path


@pytest.fixture
def task() -> Task:
    return create("agnews", {"buckets": 512, "length": 32})


def test_it_learns(task: Task, tmp_path: Path) -> None:
    metrics = train(task, task.load(Source(path=write(tmp_path / "news.csv"))), epochs=30, learning_rate=2e-2)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.9


def test_blocks(task: Task) -> None:
    layout = layout_of(task, task.model())
    assert layout.names == ("embedding", "head")
    assert task.head(layout.names) == ("head",)


def test_packed_files_hold_the_same(task: Task, tmp_path: Path) -> None:
    path = write(tmp_path / "news.csv")
    (tmp_path / "news.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
    one, other = task.load(share_of(path, 1, 4)), task.load(share_of(tmp_path / "news.csv.gz", 1, 4))
    assert torch.equal(one.train.inputs, other.train.inputs)
    assert torch.equal(one.test.targets, other.test.targets)
    assert len(one.train) + len(one.test) == 50
    assert one.train.inputs.dtype == torch.int64


def test_tokens_are_the_same_on_every_machine() -> None:
    task = AgNews(AgNewsSettings(buckets=1000, length=5))
    # The CRC-32 of "the" and of "cat".
    assert task.tokens("The cat!").tolist() == [1 + 0x3C456DE6 % 999, 1 + 0x9E5E43A8 % 999, 0, 0, 0]
    assert len(task.tokens("a b c d e f g")) == 5
    assert 0 not in task.tokens("a b c d e f g")


def test_bigrams_follow_the_words_and_tell_order() -> None:
    task = AgNews(AgNewsSettings(bigrams=True, length=6))
    one, other = task.tokens("dog bites man").tolist(), task.tokens("man bites dog").tolist()
    assert sorted(one[:3]) == sorted(other[:3])
    assert one[5] == 0
    assert set(one[3:5]) & set(other[3:5]) == set()


def test_padding_counts_for_nothing(task: Task) -> None:
    torch.manual_seed(0)
    model = task.model().eval()
    short = AgNews(AgNewsSettings(buckets=512, length=3)).tokens("some three words")
    padded = AgNews(AgNewsSettings(buckets=512, length=30)).tokens("some three words")
    one, other = (model(torch.from_numpy(tokens)[None]) for tokens in (short, padded))
    assert torch.allclose(one, other)
    assert torch.isfinite(model(torch.zeros(1, 30, dtype=torch.int64))).all()


def test_items_are_averaged_as_by_an_embedding_bag() -> None:
    torch.manual_seed(0)
    mean = MeanEmbedding(20, 4)
    torch.nn.init.normal_(mean.words.weight)  # The row of the padding, too.
    bag = torch.nn.EmbeddingBag.from_pretrained(mean.words.weight.detach(), mode="mean", padding_idx=0)
    tokens = torch.tensor([[1, 2, 2, 0], [3, 0, 0, 0], [0, 0, 0, 0]])
    assert torch.allclose(mean(tokens), bag(tokens))


@pytest.mark.parametrize("text", ["", '"5","a","b"\n', '"0","a","b"\n', '"x","a","b"\n', '"1","a"\n', "1,a,b,c\n"])
def test_files_that_do_not_fit_are_refused(task: Task, tmp_path: Path, text: str) -> None:
    (tmp_path / "news.csv").write_text(text)
    with pytest.raises(DataError, match=r"expected a \.csv or \.csv\.gz file") as caught:
        task.load(Source(path=tmp_path / "news.csv"))
    assert "\n" not in caught.value.message


def test_damaged_and_missing_files_are_refused(task: Task, tmp_path: Path) -> None:
    (tmp_path / "news.csv.gz").write_bytes(gzip.compress(b'"1","a","b"\n' * 1000)[:40])
    (tmp_path / "latin.csv").write_bytes(b'"1","\xe9","b"\n')
    for source in (
        Source(path=tmp_path / "news.csv.gz"),
        Source(path=tmp_path / "latin.csv"),
        Source(path=tmp_path / "absent.csv"),
        share_of(),
    ):
        with pytest.raises(DataError, match=r"expected a \.csv or \.csv\.gz file"):
            task.load(source)


def test_text_cannot_be_rotated(task: Task, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="turns images"):
        task.load(share_of(write(tmp_path / "news.csv"), kind="rotated"))


def test_the_real_news() -> None:
    path, task = real("ag_news_test.csv.gz"), create("agnews", {})
    data = task.load(share_of(path))
    assert len(data.train) + len(data.test) == 7600
    assert torch.bincount(torch.cat([data.train.targets, data.test.targets])).tolist() == [1900] * 4
    assert len(data.test) == pytest.approx(1520, abs=4 * (7600 * 0.2 * 0.8) ** 0.5)
    metrics = train(task, data, epochs=3, learning_rate=1e-2)
    assert metrics.accuracy is not None
    assert metrics.accuracy > 0.75
