"""A study's first model is drawn from its seed, or the study says that somebody brings it: a site checks."""

from __future__ import annotations

from pathlib import Path

import pytest
import tomli_w

from node import desk
from node.config import NodeFile
from node.store import NodeStore
from node.training import trainer
from node.training.jobs import Job, layout_to_json
from secure_fl.errors import RefusedError
from secure_fl.rounds import RoundKind
from secure_fl.settings import read_toml
from secure_fl.simulation.workspace import prepare
from secure_fl.study.settings import Study

CHOSEN = "ab" * 32  # the digest of weights that somebody likes


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
@pytest.mark.parametrize("start", ["seed", "given"])
def test_weights_of_somebodys_choosing_are_approved_only_where_the_study_says_so(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    start: str,
    checked: bool,
) -> None:
    if not checked:
        monkeypatch.setattr(desk, "require_own_start", lambda _study: None)
    made = prepare(tmp_path / "run", Study.parse({"simulation": {"nodes": 3}}), policy={})
    made.point_nodes_at(1)
    path = made.node_file("site-01")
    table = read_toml(path)
    table["policy"].update(approve="ask", approved=[])
    path.write_bytes(tomli_w.dumps(table).encode())
    study = made.study.to_table()
    study["study"].update(initial=CHOSEN, start=start)
    file = tmp_path / "study.toml"
    file.write_bytes(tomli_w.dumps(study).encode())
    refused = checked and start == "seed"
    assert desk.main(["approve", str(path), str(file)]) == (7 if refused else 0)
    said = capsys.readouterr()
    assert ("is not the one that its seed makes here" in said.err) == refused
    assert ("first model: brought by whoever submits the study" in said.out) == (start == "given")
    assert bool(NodeStore(NodeFile.read(path).state_folder).approvals()) != refused


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
@pytest.mark.parametrize("start", ["seed", "given"])
def test_a_node_looks_for_itself_whoever_approved_the_hash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: str, checked: bool
) -> None:
    if not checked:
        monkeypatch.setattr(trainer, "require_own_start", lambda _study: None)
    study = Study.parse({"simulation": {"nodes": 3}}).completed()
    chosen = study.model_copy(update={"study": study.study.model_copy(update={"initial": CHOSEN, "start": start})})
    (tmp_path / "study.json").write_bytes(chosen.canonical())
    rehearsal = Job(
        kind=RoundKind.TRAIN, study=str(tmp_path / "study.json"), round=1, attempt=1, seed=1, me="site-01",
        dataset={"share": {"index": 0, "of": 3, "seed": 0}}, folder="", device="cpu", threads=1,
        layout=layout_to_json(study.check(nodes=3)), received="", personal="", combination="", state="", update_to="",
        features_to="", personal_to="", state_to="", model_to="", rehearsal=True,
    )  # fmt: skip
    if checked and start == "seed":
        with pytest.raises(RefusedError, match="is not the one that its seed makes here"):
            trainer.Trainer().execute(rehearsal)
    else:
        assert trainer.Trainer().execute(rehearsal).samples
