"""A task in a file that a site lists: the bytes that were agreed to run, and no others."""

from __future__ import annotations

import asyncio
import hashlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from node import desk, doctor
from node.agreements import Agreements
from node.approvals import Approvals
from node.config import NodeFile
from node.service import Node
from node.training.trainer import Trainer
from node.training.worker import WorkerProcess
from secure_fl import tasks
from secure_fl.errors import CodeChangedError, RefusedError, SettingsError, TaskUnavailableError
from secure_fl.privacy.ledger import read_site_ledger
from secure_fl.settings import read_toml
from secure_fl.study.explain import explain
from secure_fl.study.settings import Study
from secure_fl.tasks import files
from secure_fl.tasks.code_digest import task_code
from secure_fl.tasks.files import TaskFile
from tests.attacks.test_attacks import INITIAL, EvilCoordinator, _Fixed
from tests.node.test_agreements import TASK, _rehearsal
from tests.support.federation import Federation

MARK = "\nfrom pathlib import Path\nPath(__file__).with_name('ran-{factor}').touch()\n"
NAME = "kept_in_a_file:Tiny"


@pytest.fixture(autouse=True)
def forget() -> Iterator[None]:
    yield
    forget_loaded()
    files._registered.clear()


def forget_loaded() -> None:
    for name in ("kept_in_a_file", "json_task"):
        sys.modules.pop(name, None)
        files._loaded.pop(name, None)


def write(folder: Path, factor: int) -> str:
    """The file as it is in its version `factor`; returns its digest."""
    text = (TASK + MARK).replace("{factor}", str(factor))
    (folder / "kept_in_a_file.py").write_text(text)
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_file_is_loaded_under_its_own_name_and_has_the_digest_that_a_plain_import_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digest = write(tmp_path, 1)
    files.register(NAME, TaskFile(path=tmp_path / "kept_in_a_file.py"))
    listed = task_code(tasks.resolve(NAME))
    assert files.file_sha256(NAME) == files.shown_sha256(NAME) == digest
    forget_loaded()
    files._registered.clear()
    monkeypatch.syspath_prepend(tmp_path)
    assert task_code(tasks.resolve(NAME)) == listed
    assert files.file_sha256(NAME) == ""
    # A study lead, who has the file and no list, is shown the digest that a site's approval shows.
    assert files.shown_sha256(NAME) == digest
    assert files.shown_sha256("digits") == files.shown_sha256("secure_fl.tasks.digits:Digits") == ""
    shown = explain(Study.of(task=NAME))[0].sentences
    assert any(f"a single file, here with sha256:{digest};" in sentence for sentence in shown)
    assert not any("single file" in sentence for sentence in explain(Study.of(task="digits"))[0].sentences)


def test_a_changed_file_does_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agreed = write(tmp_path, 1)
    now = write(tmp_path, 2)
    files.register(NAME, TaskFile(path=tmp_path / "kept_in_a_file.py", sha256=agreed))
    with pytest.raises(CodeChangedError, match="changed since the study was approved here") as caught:
        tasks.resolve(NAME)
    assert agreed in caught.value.message
    assert now in caught.value.message
    assert "secure-fl node approve" in caught.value.hint
    assert not (tmp_path / "ran-2").exists()
    # It is this check and no other: without it the file runs.
    monkeypatch.setattr(TaskFile, "read", lambda self: self.path.read_bytes())
    tasks.resolve(NAME)
    assert (tmp_path / "ran-2").exists()


def test_what_runs_is_what_was_read_and_new_code_comes_only_with_a_new_agreement(tmp_path: Path) -> None:
    first, path = write(tmp_path, 1), tmp_path / "kept_in_a_file.py"
    files.register(NAME, TaskFile(path=path, sha256=first))
    before = tasks.resolve(NAME)
    code = task_code(before)
    second = write(tmp_path, 2)
    assert tasks.resolve(NAME) is before  # what this process has is what was agreed to
    assert task_code(before) == code
    files.register(NAME, TaskFile(path=path, sha256=second))
    after = tasks.resolve(NAME)
    assert after is not before
    assert task_code(after).digest != code.digest


def test_no_compiled_copy_runs_in_place_of_the_file(tmp_path: Path) -> None:
    write(tmp_path, 1)
    cached = tmp_path / "__pycache__" / f"kept_in_a_file.{sys.implementation.cache_tag}.pyc"
    cached.parent.mkdir()
    cached.write_bytes(b"anything")
    files.register(NAME, TaskFile(path=tmp_path / "kept_in_a_file.py"))
    assert tasks.resolve(NAME).__name__ == "Tiny"


def test_a_file_takes_no_other_modules_place(tmp_path: Path) -> None:
    for name in ("json", "this"):  # one that is loaded, one that could be
        (tmp_path / f"{name}.py").write_text("")
        files.register(f"{name}:Tiny", TaskFile(path=tmp_path / f"{name}.py"))
        with pytest.raises(TaskUnavailableError, match="another module here is called") as caught:
            tasks.resolve(f"{name}:Tiny")
        assert "a name of its own" in caught.value.hint
    files.register(NAME, TaskFile(path=tmp_path / "absent.py"))
    with pytest.raises(TaskUnavailableError, match="cannot be read"):
        tasks.resolve(NAME)
    (tmp_path / "json_task.py").write_text("raise RuntimeError")
    files.register("json_task:Tiny", TaskFile(path=tmp_path / "json_task.py"))
    with pytest.raises(TaskUnavailableError, match="RuntimeError"):
        tasks.resolve("json_task:Tiny")
    assert "json_task" not in sys.modules


# --- at a site ------------------------------------------------------------------------------------------------------


def site(folder: Path, *listed: str) -> tuple[Federation, Path]:
    settings = {"study": {"rounds": 3, "initial": INITIAL}, "task": {"name": NAME}}
    write(folder, 1)
    sys.path.append(str(folder))  # for whoever writes the study
    try:
        fed = Federation(folder / "run", settings)
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("kept_in_a_file")
    fed.set_policy("site-01", approve="ask", approved=[], tasks=list(listed))
    return fed, fed.workspace.node_file("site-01")


def test_a_task_that_the_site_did_not_list_is_not_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fed, path = site(tmp_path)
    study = str(fed.workspace.folder / "study.toml")
    (tmp_path / "ran-1").unlink()
    assert desk.main(["approve", str(path), study]) == RefusedError.exit_code
    said = capsys.readouterr().err
    assert f"task {NAME!r} is not installed at this site, and not allowed by [policy] tasks" in said
    assert '[policy] tasks = ["kept_in_a_file.py:Tiny"]' in said
    assert not (tmp_path / "ran-1").exists()


@pytest.mark.parametrize("listed", [["a b.py:Tiny"], ["wards.py:"], ["a/wards.py:Tiny", "b/wards.py:Tiny"]])
def test_a_slip_in_the_list_is_found_when_the_file_is_read(tmp_path: Path, listed: list[str]) -> None:
    fed, path = site(tmp_path)
    fed.set_policy("site-01", tasks=listed)
    with pytest.raises(SettingsError, match="tasks"):
        NodeFile.read(path)


def test_the_doctor_shows_the_digest_and_minds_who_may_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, path = site(tmp_path, "../../../kept_in_a_file.py:Tiny")
    task = tmp_path / "kept_in_a_file.py"
    task.chmod(0o644)
    doctor.main([str(path)])
    assert f"sha256:{write(tmp_path, 1)}" in capsys.readouterr().out
    task.chmod(0o666)
    doctor.main([str(path)])
    assert "others on this machine can change what this node runs" in capsys.readouterr().out
    task.unlink()
    doctor.main([str(path)])
    assert "put the task's file there" in capsys.readouterr().out


def test_a_node_runs_the_file_that_was_approved_refuses_a_changed_one_and_comes_back_once_it_is_approved(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    fed, path = site(tmp_path, "../../../kept_in_a_file.py:Tiny")
    first = write(tmp_path, 1)
    approve = ["approve", str(path), str(fed.workspace.folder / "study.toml")]
    assert desk.main(approve) == 0
    assert f"task {NAME}: the file with sha256:{first}, and no other" in capsys.readouterr().out

    async def upload(evil: EvilCoordinator, count: int, *, number: int, attempt: int) -> None:
        evil.announce(number=number, attempt=attempt, deadline_ms=30_000)
        for _ in range(600):
            if len(evil.uploads) == count:
                return
            assert evil.said.empty(), evil.said.get_nowait()
            await asyncio.sleep(0.05)
        raise AssertionError("no upload")

    async def run() -> None:
        evil, file = EvilCoordinator(fed), NodeFile.read(path)
        node = asyncio.create_task(Node(file, _Fixed(evil, file), WorkerProcess()).run())
        assert (await asyncio.wait_for(evil.said.get(), 5)).study_answer.accepted
        await upload(evil, 1, number=1, attempt=1)
        second = write(tmp_path, 2)
        evil.announce(number=2, attempt=1, deadline_ms=30_000)
        assert (await asyncio.wait_for(evil.said.get(), 30)).HasField("sit_out")
        assert not (tmp_path / "ran-2").exists()
        forget_loaded()  # `node approve` is a process of its own
        assert await asyncio.to_thread(desk.main, approve) == 0
        (tmp_path / "ran-2").unlink()
        await upload(evil, 2, number=2, attempt=2)  # by the same process: nobody restarts a node for this
        assert (tmp_path / "ran-2").exists()
        assert Approvals(file.state_folder).read()[fed.study.id].file == second
        node.cancel()
        await asyncio.gather(node, return_exceptions=True)

    asyncio.run(run())
    assert "the task's code in kept_in_a_file.py changed since the study was approved here" in caplog.text
    file = NodeFile.read(path)
    entries = read_site_ledger(file.state_folder / "ledger.jsonl", authority=file.ca_pem(), site="site-01")
    kinds = [entry.kind for entry in entries]
    assert kinds == ["opened", "approved", "planned", "sent", "refused", "approved", "planned", "sent"]


def test_a_study_that_was_approved_unseen_runs_no_file(tmp_path: Path) -> None:
    """By its hash, before it was offered: nobody saw its task then, and any file in its place would run."""
    fed, path = site(tmp_path, "../../../kept_in_a_file.py:Tiny")
    assert desk.main(["approve", str(path), fed.study.id]) == 0
    file = NodeFile.read(path)
    approvals, accountant = Approvals(file.state_folder), NothingCounts()
    write(tmp_path, 2)  # What the person at the desk has never seen.
    agreements = Agreements(file, approvals, accountant)  # type: ignore[arg-type]
    with pytest.raises(CodeChangedError, match="before anybody saw here which code it runs") as caught:
        agreements.task_file(fed.study, number=1)
    assert "`secure-fl node approve`" in (caught.value.hint or "")
    assert accountant.refusals == [(fed.study.id, 1)]
    assert desk.main(["approve", str(path), str(fed.workspace.folder / "study.toml")]) == 0
    assert agreements.task_file(fed.study, number=1) is not None


class NothingCounts:
    """Notes refusals."""

    def __init__(self) -> None:
        self.refusals: list[tuple[str, int]] = []

    def refused(self, study_id: str, number: int, _reason: str) -> None:
        self.refusals.append((study_id, number))


def test_the_training_process_checks_for_itself(tmp_path: Path) -> None:
    """The file may change after the node has looked at it."""
    agreed = write(tmp_path, 1)
    write(tmp_path, 2)
    study = Study.parse({"study": {"initial": INITIAL}, "task": {"name": NAME}})
    (tmp_path / "study.json").write_bytes(study.canonical())
    job = replace(
        _rehearsal(tmp_path / "study.json"), task_file=str(tmp_path / "kept_in_a_file.py"), task_sha256=agreed
    )
    with pytest.raises(CodeChangedError):
        Trainer().execute(job)
    assert not (tmp_path / "ran-2").exists()
    write(tmp_path, 1)
    assert Trainer().execute(job).found["code"]


def test_a_node_file_names_files_beside_it(tmp_path: Path) -> None:
    _, path = site(tmp_path, "tasks/wards.py:Wards", "some.module:Task")
    file = NodeFile.read(path)
    assert file.task_files == {"wards:Wards": path.parent / "tasks" / "wards.py"}
    assert file.allows_task("wards:Wards")
    assert file.allows_task("some.module:Task")
    assert file.allows_task("digits")
    assert not file.allows_task("tasks/wards.py:Wards")
    assert read_toml(path)["policy"]["tasks"] == ["tasks/wards.py:Wards", "some.module:Task"]
