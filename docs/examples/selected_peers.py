"""Whom the sites of a finished simulation asked to be combined with: peers of their own domain, and of like labels?

    python docs/examples/selected_peers.py DIR...

DIR is one run in the folder of `secure-fl bench strategies`, of a strategy that combines, on data that are turned by
domain. "Same domain" is the part of all selected peers whose images are turned as the site's own; "classes in common"
is the part of the site's classes that a selected peer has too. Beside each stands what a random peer would give.
"""

import sys
from pathlib import Path

import numpy as np

from secure_fl.bench.features import data_of
from secure_fl.results import traces
from secure_fl.study.settings import Study


def selection(folder: Path) -> dict[str, float]:
    """Means over all sites, rounds and selected peers."""
    study = Study.read(folder / "study.toml")
    names = list(study.study.roster)
    domain = {name: index % study.simulation.domains for index, name in enumerate(names)}
    classes = {name: set(data_of(study, name).train.targets.tolist()) for name in names}
    others = [(site, peer) for site in names for peer in names if peer != site]
    asked = [
        (site, peer)
        for site in names
        for noted in traces.read(folder / "nodes" / site / "rows.jsonl").values()
        for peer in noted.get("asked", {})
        if peer != site
    ]
    rounds = study.study.rounds * len(names)

    def mean(pairs: list[tuple[str, str]]) -> tuple[float, float]:
        same = [domain[site] == domain[peer] for site, peer in pairs]
        common = [len(classes[site] & classes[peer]) / len(classes[site]) for site, peer in pairs]
        return (float(np.mean(same)), float(np.mean(common))) if pairs else (0.0, 0.0)

    (same, common), (any_same, any_common) = mean(asked), mean(others)
    return {
        "peers per site and round": len(asked) / rounds,
        "same domain": same,
        "same domain, at random": any_same,
        "classes in common": common,
        "classes in common, at random": any_common,
    }


if __name__ == "__main__":
    for run in map(Path, sys.argv[1:]):
        found = ", ".join(f"{name} {value:.3f}" for name, value in selection(run).items())
        sys.stdout.write(f"{run.name}: {found}\n")
