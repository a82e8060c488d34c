"""The output folder of a run: a throw-away PKI, one file per party, and what is left in the end.

DIR/ca.pem  summary.json  history.csv  report.html
DIR/model.safetensors            with its card, model.json and model.md
DIR/pki/                         the consortium of this run
DIR/coordinator/                 coordinator.toml, state, log
DIR/nodes/<name>/                node.toml, ledger.jsonl, model.safetensors with its card, log;
                                 if any: witness.jsonl, traces.jsonl, rows.jsonl
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tomli_w

from secure_fl.errors import SettingsError
from secure_fl.files import make_folder, private_folder, write_atomically, write_pieces
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate
from secure_fl.results.record import StudyRecord
from secure_fl.simulation.units import declared_units
from secure_fl.study.settings import Study
from secure_fl.study.simulated import simulated_names

if TYPE_CHECKING:
    from secure_fl.study.start import Start


@dataclass(frozen=True, slots=True, kw_only=True)
class Workspace:
    """Where a run's files are, and the study with its roster filled in."""

    folder: Path
    study: Study
    resumed: bool
    policy: Mapping[str, Any]  # what every simulated site's policy says otherwise

    @property
    def coordinator_file(self) -> Path:
        """The coordinator's TOML file."""
        return self.folder / "coordinator" / "coordinator.toml"

    @property
    def coordinator_state(self) -> Path:
        """The coordinator's state folder."""
        return self.folder / "coordinator" / "state"

    @property
    def study_state(self) -> Path:
        """The study's folder at the coordinator."""
        return self.coordinator_state / "studies" / self.study.id

    def node_folder(self, name: str) -> Path:
        """A node's folder."""
        return self.folder / "nodes" / name

    def node_file(self, name: str) -> Path:
        """A node's TOML file."""
        return self.node_folder(name) / "node.toml"

    def point_nodes_at(self, port: int) -> None:
        """Write every node's file, now that the coordinator's port is known."""
        for index, name in enumerate(self.study.study.roster):
            private_folder(self.node_folder(name))  # a node's state, as in a deployment
            settings = self._node_settings(index, name, port, fingerprint=self._fingerprint())
            write_atomically(self.node_file(name), tomli_w.dumps(settings).encode())

    def first_node(self) -> dict[str, Any]:
        """What the first node's file will say, but for where its coordinator is: that is not known yet."""
        return self._node_settings(0, next(iter(self.study.study.roster)), 1, fingerprint="0" * 64)

    def collect(self) -> None:
        """Put the models, and what the sites noted, where the contract says they are."""
        for name, file in product(self.study.study.roster, ("model.safetensors", "traces.jsonl", "rows.jsonl")):
            kept = self.node_folder(name) / "studies" / self.study.id / file
            if kept.exists():
                shutil.copyfile(kept, self.node_folder(name) / file)

    def _node_settings(self, index: int, name: str, port: int, *, fingerprint: str) -> dict[str, Any]:
        study = self.study
        units = {"units": declared_units(study)[index]} if study.privacy.mode != "none" else {}
        share = {
            "index": index,
            "of": len(study.study.roster),
            "seed": study.study.seed,
            "partition": study.simulation.partition_settings().model_dump(mode="json"),
        }
        return {
            "node": {
                "name": name,
                "coordinator": f"127.0.0.1:{port}",
                "fingerprint": fingerprint,
                "certificate": f"../../pki/node-{name}.pem",
                "ca": "../../ca.pem",
                "crl": "../../pki/crl.pem",
                # The cores are divided among the sites; at least one each.
                "threads": max(1, (os.cpu_count() or 1) // len(study.study.roster)),
            },
            "datasets": {study.task.dataset_id: {**self._files(), **units, "share": share}},
            "policy": {
                # One person plays every site here, so every site agrees to what that person wrote.
                "protections": [study.protection.kind],
                "tasks": _listed(study),
                "colluders": study.protection.colluders,
                "exceptions": sorted(study.exceptions),
                "metrics": "per-node",
                "approve": "listed",
                "approved": [study.id],
                **self.policy,
            },
            "simulation": {
                "seed": study.study.seed,
                "seconds": study.simulation.seconds,
                "slowdown": study.simulation.slow.get(name, 1.0),
            },
            "state": {"folder": "."},
        }

    def _files(self) -> dict[str, str]:
        simulation = self.study.simulation
        path = {"path": str(Path(simulation.path).resolve())} if simulation.path else {}
        return {**path, **({"format": simulation.format} if simulation.format else {})}

    def _fingerprint(self) -> str:
        return Certificate.from_pem((self.folder / "pki" / "coordinator-coordinator.pem").read_bytes()).fingerprint


def imagined(folder: Path, study: Study, *, policy: Mapping[str, Any]) -> Workspace:
    """The workspace as it would be, with no file in it and sites that have no keys: to look at before there is one."""
    roster = dict.fromkeys(simulated_names(study.simulation.nodes), "0" * 64)
    study = study.model_copy(update={"study": study.study.model_copy(update={"roster": roster})})
    return Workspace(folder=folder, study=study, resumed=False, policy=policy)


def prepare(folder: Path, study: Study, *, policy: Mapping[str, Any], start: Start | None = None) -> Workspace:
    """Make the folder, or take up an unfinished run of the same study in it. Raises `SettingsError`.

    `start` is the first model of a study that goes on from a given one.
    """
    study = study.completed()
    make_folder(folder)
    kept = folder / "study.toml"
    if kept.exists():
        return _resume(folder, kept, study, policy)
    if any(folder.iterdir()):
        raise SettingsError(f"{folder}: is not empty", advice="choose another --out, or remove the folder")
    roster = _make_pki(folder, simulated_names(study.simulation.nodes))
    study = study.model_copy(update={"study": study.study.model_copy(update={"roster": roster})})
    workspace = Workspace(folder=folder, study=study, resumed=False, policy=policy)
    settings = {
        "coordinator": {
            "address": "127.0.0.1:0",
            "certificate": "../pki/coordinator-coordinator.pem",
            "ca": "../ca.pem",
            "crl": "../pki/crl.pem",
            "tasks": _listed(study),
        },
        "monitoring": {"address": ""},
        "studies": ["../study.toml"],
    }
    write_atomically(workspace.coordinator_file, tomli_w.dumps(settings).encode())
    if start is not None:
        _hand_over(workspace, start)
    # Written last: its presence means that everything before it is complete.
    write_atomically(kept, tomli_w.dumps(study.to_table()).encode())
    return workspace


def _hand_over(workspace: Workspace, start: Start) -> None:
    """Put a first model where the coordinator finds those that came with a study."""
    first = start.first_model()
    private_folder(workspace.coordinator_state)  # as the coordinator would make it: its state is nobody else's
    write_pieces(workspace.study_state / "objects" / first.sha256.hex(), start.layout.pieces(start.blocks))
    write_atomically(workspace.study_state / "first.json", first.to_json())


def _listed(study: Study) -> list[str]:
    """The study's own task, which every party here allows: whoever simulates wrote it, or chose it."""
    return [study.task.name] if ":" in study.task.name else []


def _make_pki(folder: Path, names: list[str]) -> dict[str, str]:
    authority = Authority.create(folder / "pki", consortium="simulation", days=30)
    authority.issue("coordinator", "coordinator", hosts=("127.0.0.1", "localhost"), days=30).save(folder / "pki")
    roster = {}
    for name in names:
        credential = authority.issue("node", name, days=30)
        credential.save(folder / "pki")
        roster[name] = credential.certificate.fingerprint
    write_atomically(folder / "ca.pem", authority.ca_pem)
    return roster


def _resume(folder: Path, kept: Path, study: Study, policy: Mapping[str, Any]) -> Workspace:
    earlier = Study.read(kept)
    wanted = study.model_copy(update={"study": study.study.model_copy(update={"roster": earlier.study.roster})})
    if (folder / "summary.json").exists():
        raise SettingsError(f"{folder}: holds a finished run", advice="choose another --out, or remove the folder")
    if (wanted.id, wanted.simulation) != (earlier.id, earlier.simulation):
        raise SettingsError(
            f"{folder}: holds an unfinished run of another study",
            advice="choose another --out, or remove the folder",
        )
    workspace = Workspace(folder=folder, study=earlier, resumed=True, policy=policy)
    record = workspace.study_state / "record.json"
    if record.exists() and (failed := StudyRecord.load(record)).outcome == "aborted":
        raise SettingsError(
            f"{folder}: holds a run that failed ({failed.reason})", advice="choose another --out, or remove the folder"
        )
    return workspace
