"""What the sites of a finished run of task `sine` learnt together: the global decoder of `pflda`, drawn as an SVG file.

    python docs/examples/sine_decoder.py DIR decoder.svg

DIR is the `--out` of `secure-fl run`, or one run in the folder of `secure-fl bench strategies`. The decoder is the
shared part of the model and lies with the coordinator; a site's own encoder folds its inputs onto [−1/2, 1/2] before.
Beside it: the sine with the same period that is nearest to it. Its phase is free, since every encoder shifts.
"""

import math
import sys
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file

from secure_fl import tasks
from secure_fl.report.drawing import ALONE, Label, Scale, axis_title, labels, linear_axis, name_room, rules, svg
from secure_fl.study.settings import Study


def decoder(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Features φ and the decoder's outputs g_w(φ)."""
    study = Study.read(folder / "study.toml")
    model = tasks.create(study.task.name, study.task.settings).model()
    newest = max(folder.glob("coordinator/state/studies/*/checkpoints/*.safetensors"))
    shared = {name.replace("/", "."): tensor for name, tensor in load_file(newest).items()}
    model.load_state_dict(shared, strict=False)  # what is not shared, the encoder, stays as it was made
    phi = torch.linspace(-0.5, 0.5, 201)[:, None]
    with torch.no_grad():
        values = model.get_submodule("decoder")(phi)
    return phi[:, 0].numpy(), values[:, 0].numpy()


def nearest_sine(phi: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, float]:
    """The least-squares fit a·sin(2πφ) + b·cos(2πφ), and which part of the decoder's variance it explains."""
    angle = 2 * math.pi * phi
    basis = np.stack([np.sin(angle), np.cos(angle)], axis=1)
    weights, *_ = np.linalg.lstsq(basis, values, rcond=None)
    fitted = basis @ weights
    return fitted, 1 - float(np.var(values - fitted) / np.var(values))


def draw(phi: np.ndarray, values: np.ndarray, fitted: np.ndarray, explained: float) -> str:
    """Both curves, in the style of the reports."""
    names = ("global decoder", "nearest sine")
    right = ALONE.width - name_room(ALONE, names, letter=8.2)
    across = Scale(low=-0.5, high=0.5, start=ALONE.left + 6, end=right)
    both = [*values.tolist(), *fitted.tolist()]
    axis = linear_axis(both, ALONE.height - ALONE.bottom, ALONE.top, text=lambda y, d: f"{y:.{d}f}", ceiling=None)
    body = rules(ALONE, axis, right + 6)
    for at in (-0.5, -0.25, 0, 0.25, 0.5):
        body += f'<text class="tick mid" x="{across(at):.1f}" y="{ALONE.height - ALONE.bottom + 18}">{at:g}</text>'
    beside = []
    for name, css, curve in zip(names, ("s0", "s1 d1"), (values, fitted), strict=True):
        path = "L".join(
            f"{across(x):.1f} {axis.scale(y):.1f}" for x, y in zip(phi.tolist(), curve.tolist(), strict=True)
        )
        body += f'<g class="line many {css}"><path d="M{path}"/></g>'
        beside.append(Label(name=name, x=right, y=axis.scale(float(curve[-1])), css=f"series {css}"))
    body += axis_title(ALONE, across, "feature φ, after a site's own encoder; upwards: decoder g(φ)")
    label = f"The global decoder over one period; the nearest sine explains {explained:.1%} of it."
    return svg(ALONE, label, body + labels(ALONE, beside, right + 22, axis.scale))


if __name__ == "__main__":
    run, out = map(Path, sys.argv[1:])
    features, outputs = decoder(run)
    sine, part = nearest_sine(features, outputs)
    out.write_text(draw(features, outputs, sine, part), encoding="utf-8")
    sys.stdout.write(f"the nearest sine explains {part:.1%} of the decoder\n")
