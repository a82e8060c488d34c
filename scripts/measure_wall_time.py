"""Synchronous rounds beside circles that do not wait, in real seconds, among real processes (gRPC, TLS, `masked`).

Ten sites on digits, one of them five times slower, each study under the same seed and with the same number of uploads.
Training takes at least a second (`simulation.seconds`): a site sleeps what is left of it, so that ten sites on a few
cores do not hold each other up. All else is real: processes, connections, masks, disks.

    sync        synchronous rounds
    buffered    circles by speed that do not wait

Time begins when the first attempt of a study is announced; processes that start before are not counted. With circles by
speed, that attempt is the one in which sites declare how long they trained. Every version is kept as it is committed,
and measured after the study on the test rows of all sites together. As in `secure-fl bench asynchronous`, models are
compared once per ten uploads, and what counts is the first with 95 % of the best accuracy of `sync`.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from secure_fl import tasks
from secure_fl.bench.asynchronous import TARGET
from secure_fl.events import Event, RoundCommitted, RoundStarted
from secure_fl.results.record import RoundRecord
from secure_fl.rounds import RoundKind
from secure_fl.settings import set_dotted
from secure_fl.simulation.run import run
from secure_fl.study.settings import Study
from secure_fl.study.simulated import simulated_names
from secure_fl.tasks.base import Share, Source, Split
from secure_fl.tasks.state_dict import convert

SITES, SLOW = 10, "site-02"
SYNC, BUFFERED = "sync", "buffered"


@dataclass(slots=True)
class Observer:
    """Keeps every version of a running study, and when it was committed."""

    run: Path
    kept: Path
    begun: float | None = None
    committed: list[tuple[float, RoundRecord]] = field(default_factory=list)

    def listen(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, RoundStarted) and self.begun is None:
            self.begun = time.monotonic()
        if isinstance(event, RoundCommitted) and event.record.kind is RoundKind.TRAIN:
            self.committed.append((time.monotonic() - (self.begun or 0.0), event.record))
            name = f"{event.record.number:06d}.safetensors"
            # A coordinator keeps a version until the one after the next.
            (found,) = self.run.glob(f"coordinator/state/studies/*/checkpoints/{name}")
            shutil.copyfile(found, self.kept / name)


def study_of(mode: str, seed: int, rounds: int, assignments: list[str]) -> Study:
    """The study of one run. Circles that do not wait share the uploads of as many rounds."""
    table: dict[str, Any] = {
        "study": {"name": f"wall-{mode}", "rounds": rounds, "seed": seed},
        "task": {"name": "digits"},
        "simulation": {"nodes": SITES, "partition": "dirichlet", "seconds": 1.0, "slow": {SLOW: 5.0}},
    }
    for assignment in assignments:
        set_dotted(table, assignment)
    if mode == BUFFERED:
        turns = rounds * len(Study.parse(table).circles(simulated_names(SITES)))
        table["study"]["rounds"] = turns
        table.setdefault("rounds", {}).update(mode=BUFFERED, flushes=turns)
        table.setdefault("protection", {})["circles"] = "speed"
    return Study.parse(table)


def measure(study: Study) -> dict[str, Any]:
    """Run a study and measure its versions."""
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder, "kept")
        kept.mkdir()
        observer = Observer(Path(folder, "run"), kept)
        run(study, engine="processes", folder=observer.run, policy={}, listener=observer.listen)
        accuracies = accuracies_of(study.completed(), sorted(kept.iterdir()))
    points: list[dict[str, Any]] = []
    uploads, up, down = 0, 0, 0
    for (seconds, record), accuracy in zip(observer.committed, accuracies, strict=True):
        before, uploads = uploads, uploads + len(record.cohort)
        up, down = up + record.bytes_up, down + record.bytes_down
        if uploads // SITES > before // SITES:
            costs = {"seconds": seconds, "uploads": uploads, "bytes_up": up, "bytes_down": down}
            points.append({**costs, "accuracy": accuracy})
    # How long rounds took; where circles do not wait, how long the turns of each did.
    taken: dict[str, list[float]] = {}
    for _, record in observer.committed:
        for members, seconds in [(circle.members, circle.seconds) for circle in record.circles if circle.seconds]:
            taken.setdefault(" ".join(members), []).append(seconds)
    return {"points": points, "taken": taken or {"rounds": [record.seconds for _, record in observer.committed]}}


def accuracies_of(study: Study, checkpoints: list[Path]) -> list[float]:
    """The accuracy of each on the test rows of all sites."""
    task = tasks.create(study.task.name, study.task.settings)
    partition, seed = study.simulation.partition_settings(), study.study.seed
    shares = [Share(index=index, of=SITES, partition=partition, seed=seed) for index in range(SITES)]
    tests = [task.load(Source(share=share)).test for share in shares]
    rows = Split(inputs=torch.cat([test.inputs for test in tests]), targets=torch.cat([test.targets for test in tests]))
    found = []
    for checkpoint in checkpoints:
        named = checkpoint.with_suffix(".torch")
        convert(checkpoint, named, task, seed=seed)
        model = task.model()
        model.load_state_dict(load_file(named))
        accuracy = task.evaluate(model.eval(), rows).accuracy
        if accuracy is None:
            raise SystemExit("this task has no accuracy to compare")
        found.append(accuracy)
    return found


def show(seed: int, runs: dict[str, dict[str, Any]]) -> None:
    """A line for each study."""
    target = TARGET * max(point["accuracy"] for point in runs[SYNC]["points"])
    print(f"seed {seed}: {target:.1%} is {TARGET:.0%} of the best accuracy of {SYNC}")
    print(f"{'':10}{'s':>8}{'of sync':>9}{'MB up':>8}{'MB down':>9}{'best %':>8}{'last %':>8}{'s in all':>10}")
    waited = None
    for mode, done in runs.items():
        points = done["points"]
        first = next((point for point in points if point["accuracy"] >= target), None)
        waited = waited or first
        cells = f"{'never':>8}{'–':>9}{'–':>8}{'–':>9}"
        if first and waited:
            ratio, up, down = first["seconds"] / waited["seconds"], first["bytes_up"] / 1e6, first["bytes_down"] / 1e6
            cells = f"{first['seconds']:8.1f}{ratio:9.2f}{up:8.2f}{down:9.2f}"
        best, last = max(point["accuracy"] for point in points), points[-1]["accuracy"]
        print(f"{mode:10}{cells}{100 * best:8.1f}{100 * last:8.1f}{points[-1]['seconds']:10.1f}")
        for whose, seconds in done["taken"].items():
            print(f"{'':10}{len(seconds)} × {sorted(seconds)[len(seconds) // 2]:.2f} s (median): {whose}")
    print(flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/measure_wall_time", description="Seconds with and without waiting.")
    parser.add_argument("--rounds", type=int, default=20, help="of the synchronous study")
    parser.add_argument("--seeds", default="0,1,2", help="separated by commas")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a key of all studies")
    parser.add_argument("--out", type=Path, help="where all points go, as JSON")
    given = parser.parse_args()
    found: dict[str, dict[str, Any]] = {}
    for seed in given.seeds.split(","):
        studies = {mode: study_of(mode, int(seed), given.rounds, given.set) for mode in (SYNC, BUFFERED)}
        found[seed] = {mode: measure(study) for mode, study in studies.items()}
        show(int(seed), found[seed])
        if given.out:
            given.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
