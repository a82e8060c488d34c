"""The topic of a news item, one of four (AG News; Zhang et al., 2015, arXiv:1509.01626).

Words become numbers by hashing, after FastText (Joulin et al., 2016, arXiv:1607.01759): a vocabulary would have to be
agreed upon, and the words that occur at one site are already something about its data.
"""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import re
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from pydantic import Field
from torch import Tensor, nn

from secure_fl.errors import DataError, SettingsError
from secure_fl.tasks.base import LocalData, Source, Task, TaskSettings, require_path
from secure_fl.tasks.cutting import cut, held
from secure_fl.tasks.units import unit_names

CLASSES = ("world", "sports", "business", "science and technology")
_EXPECTED = "a .csv or .csv.gz file with three columns and no header: class 1 to 4, title, description"
_WORD = re.compile(r"[a-z0-9]+")
_PADDING = 0


class AgNewsSettings(TaskSettings):
    """How text becomes numbers, and the size of the embedding."""

    buckets: int = Field(default=8192, ge=2, le=1_000_000)
    # Tokens of an item that are read; the average item has about 40 words.
    length: int = Field(default=64, ge=1, le=4096)
    # Pairs of neighbours count as words of their own, as in FastText; they follow the words, within `length`.
    bigrams: bool = False
    width: int = Field(default=32, ge=1, le=4096)


class MeanEmbedding(nn.Module):
    """The mean of an item's word vectors; padding has none, and an empty item is the zero vector.

    What `nn.EmbeddingBag` computes, from parts whose gradient per item Opacus gets right, so that it trains under
    DP-SGD too.
    """

    def __init__(self, buckets: int, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(buckets, width, padding_idx=_PADDING)
        # Small, like FastText's, instead of torch's deviation of 1.
        nn.init.uniform_(self.words.weight, -1 / width, 1 / width)
        with torch.no_grad():
            self.words.weight[_PADDING].zero_()

    def forward(self, tokens: Tensor) -> Tensor:
        """Token numbers (n, length) to (n, width)."""
        present = (tokens != _PADDING).unsqueeze(2)
        # Multiplied, not left to the padding's row being zero: noise and averages may have moved it.
        total: Tensor = (self.words(tokens) * present).sum(dim=1)
        return total / present.sum(dim=1).clamp(min=1)


class AgNews(Task):
    """Averaged word vectors and a linear layer."""

    kind = "classification"
    preprocessing = "public"
    Settings = AgNewsSettings
    may_have_groups = False
    public_files = ("ag_news.csv", "ag_news.csv.gz", "ag_news_train.csv.gz", "ag_news_test.csv.gz")
    public_source = "Zhang, Zhao and LeCun, 2015: AG's News Topic Classification Dataset, train.csv or test.csv"
    settings: AgNewsSettings

    def model(self) -> nn.Module:
        """Blocks `embedding` and `head`."""
        embedding = MeanEmbedding(self.settings.buckets, self.settings.width)
        return nn.Sequential(OrderedDict(embedding=embedding, head=nn.Linear(self.settings.width, len(CLASSES))))

    def load(self, source: Source) -> LocalData:
        """Token numbers (n, length), 0 where an item is over, and classes 0 to 3.

        The file is cut into training and test items here: it has no cut of its own.
        """
        if source.share is not None and source.share.partition.rotated:
            raise SettingsError(
                f"partition {source.share.partition.kind!r} turns images and this task has none",
                advice="use iid, dirichlet or pathological",
            )
        classes, texts = _read(source)
        rows = held(source, classes, classification=True)
        x, y = np.stack([self.tokens(texts[row]) for row in rows]), classes[rows]
        return LocalData.cut(x, y, *cut(source, unit_names(x, y)))

    def tokens(self, text: str) -> npt.NDArray[np.int64]:
        """The first `length` tokens of a text, hashed to 1 … buckets − 1."""
        words = _WORD.findall(text.lower())
        if self.settings.bigrams:
            words += [f"{first} {second}" for first, second in itertools.pairwise(words)]
        # CRC-32 rather than Python's own hash, which differs from one process to the next.
        hashed = [1 + zlib.crc32(word.encode()) % (self.settings.buckets - 1) for word in words[: self.settings.length]]
        numbers = np.full(self.settings.length, _PADDING, np.int64)
        numbers[: len(hashed)] = hashed
        return numbers


def _read(source: Source) -> tuple[npt.NDArray[np.int64], list[str]]:
    path = require_path(source, _EXPECTED, formats=("csv", "csv.gz"))
    try:
        rows = _rows(path)
        classes = np.array([int(row[0]) for row in rows], np.int64) - 1
        # A backslash stands for a line break in these files.
        texts = [f"{title} {description}".replace("\\", " ") for _, title, description in rows]
    except (OSError, EOFError, zlib.error, ValueError, IndexError, csv.Error):
        raise DataError(f"{path}: cannot be read; expected {_EXPECTED}") from None
    if not len(classes) or classes.min() < 0 or classes.max() >= len(CLASSES):
        raise DataError(f"{path}: no items, or a class that is not 1 to 4; expected {_EXPECTED}")
    return classes, texts


def _rows(path: Path) -> list[list[str]]:
    raw = path.read_bytes()
    text = (gzip.decompress(raw) if path.suffix == ".gz" else raw).decode("utf-8")
    return [row for row in csv.reader(io.StringIO(text, newline="")) if row]
