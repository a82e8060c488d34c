"""The features that the sites of a finished run have in common, by t-SNE, drawn as an SVG file.

    python docs/examples/shared_features.py DIR features.svg

DIR is the `--out` of `secure-fl run`, or one run in the folder of `secure-fl bench strategies`. Every site's own model
takes some of its own test rows as far as the last block that the site shares: with `fedasa` as many cells as it chose,
otherwise the last block of the strategy's sum. A number is a row's class, and so is its colour; the tooltip names the
site. One person holds all the sites' folders here: no deployed study can draw this.
"""

import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file
from sklearn.manifold import TSNE

from secure_fl import tasks, traces
from secure_fl.report.drawing import ALONE, Scale, svg
from secure_fl.report.text import escape
from secure_fl.strategies.fedasa import outputs
from secure_fl.study import Study
from secure_fl.tasks.base import Share, Source
from secure_fl.tasks.model_blocks import initial_blocks

ROWS = 40  # of each site, at most


def features(folder: Path) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Shared features row by row, the rows' classes, and whose they are."""
    study = Study.read(folder / "study.toml")
    task, strategy = tasks.create(study.task.name, study.task.settings), study.make_strategy()
    layout, _ = initial_blocks(task, study.study.seed)
    shared = strategy.request_for(task, layout).blocks
    found, classes, whose = [], [], []
    for index, site in enumerate(study.study.roster):
        share = Share(
            index=index,
            of=len(study.study.roster),
            seed=study.study.seed,
            partition=study.simulation.partition_settings(),
        )
        path = Path(study.simulation.path) if study.simulation.path else None
        test = task.load(Source(path=path, format=study.simulation.format or None, share=share)).test
        rows = torch.linspace(0, len(test) - 1, min(ROWS, len(test))).long()
        model = task.model()
        own = load_file(folder / "nodes" / site / "model.safetensors")
        model.load_state_dict({name.replace("/", "."): tensor for name, tensor in own.items()})
        noted = traces.read(folder / "nodes" / site / "traces.jsonl")
        depths = [int(noted[at]["depth"]["m*"]) for at in sorted(noted) if "depth" in noted[at]]
        last = task.cells(layout.names)[depths[-1]] if depths else shared[-1]
        found.append(outputs(task, model, (last,), test.inputs[rows])[0].numpy())
        classes.append(test.targets[rows].numpy())
        whose += [site] * len(rows)
    return np.concatenate(found), np.concatenate(classes), whose


def draw(places: np.ndarray, classes: np.ndarray, whose: list[str]) -> str:
    """A number for every row, in the style of the reports."""
    (left, low), (right, high) = places.min(axis=0).tolist(), places.max(axis=0).tolist()
    across = Scale(low=left, high=right, start=ALONE.right + 8, end=ALONE.width - ALONE.right - 8)
    up = Scale(low=low, high=high, start=ALONE.height - ALONE.top, end=ALONE.top + 12)
    body = "".join(
        f'<text class="name series mid s{label % 8}" x="{across(x):.1f}" y="{up(y):.1f}">'
        f"<title>{escape(f'{site}, class {label}')}</title>{label}</text>"
        for (x, y), label, site in zip(places.tolist(), classes.tolist(), whose, strict=True)
    )
    return svg(ALONE, f"Shared features of {len(set(whose))} sites by t-SNE: {len(whose)} rows by class.", body)


if __name__ == "__main__":
    run, out = map(Path, sys.argv[1:])
    vectors, labels, sites = features(run)
    tsne = TSNE(perplexity=min(30, (len(vectors) - 1) / 3), random_state=0, init="pca")
    out.write_text(draw(tsne.fit_transform(vectors), labels, sites), encoding="utf-8")
    sys.stdout.write(f"{len(vectors)} rows of {len(set(sites))} sites\n")
