"""A submitted study brings its first model: the coordinator imports nothing for it, and takes no other model."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tomli_w

from coordinator import doctor, first_models, submission_room
from coordinator.bulk_files import BulkFiles
from coordinator.operations import Operations
from coordinator.service import Coordinator
from coordinator.store import Store
from coordinator.submission_room import SubmissionRoom
from secure_fl.blocks import BlockShape, Layout, TensorShape
from secure_fl.errors import (
    CertificateError,
    InitialModelError,
    LayoutMismatchError,
    MalformedMessageError,
    ModelTooLargeError,
    NetworkError,
    SecureFLError,
    SettingsError,
    StorageError,
    SubmissionsFullError,
    TaskNotAllowedError,
    TaskUnavailableError,
    UnknownNameError,
)
from secure_fl.identity.authority import Authority
from secure_fl.identity.certificates import Certificate
from secure_fl.limits import MESSAGE_BYTES
from secure_fl.operations.operator import OperatorFile, connect
from secure_fl.operations.submission import chunks_of, read_request, request_of
from secure_fl.rpc import operations_pb2 as pb
from secure_fl.study.first_model import FirstModel
from secure_fl.study.settings import Study
from secure_fl.study.start import Start
from secure_fl.study.submission import start_of_study
from secure_fl.transport.channel import typed_errors
from tests.support.edge import Edge, at_the_edge
from tests.support.submission import submit

# What an import does: it leaves a mark where the process that imports it says. Otherwise a good task.
MODULE = """
import os
from pathlib import Path
Path(os.environ["SECURE_FL_TEST_IMPORTED"]).touch()
from tests.support.task import Line
"""
NAME = "imported_by_a_study:Line"
LINE = "tests.support.task:Line"


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Exists once the module was imported."""
    (tmp_path / "path").mkdir()
    (tmp_path / "path" / "imported_by_a_study.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path / "path")
    monkeypatch.setenv("SECURE_FL_TEST_IMPORTED", str(tmp_path / "mark"))
    monkeypatch.delitem(sys.modules, "imported_by_a_study", raising=False)
    return tmp_path / "mark"


@cache
def study(name: str = NAME, **sections: Any) -> Study:
    # The same model under a name whose import leaves no mark: a study says which model it starts from.
    plain = _parsed(name if ":" not in name and name != "digit" else LINE).completed()
    parsed = _parsed(name)
    return parsed.model_copy(update={"study": plain.study, "protection": plain.protection})


def _parsed(name: str) -> Study:
    return Study.parse({"study": {"rounds": 1}, "task": {"name": name}, "protection": {"kind": "none"}})


@cache
def start() -> Start:
    """Of the task under either name."""
    return start_of_study(study(LINE))


def stored(made: Coordinator, offered: Study) -> bool:
    return offered.id in made.runners or any(known.id == offered.id for known in made._store.studies())


# --- nothing is imported --------------------------------------------------------------------------------------------


def test_a_submitted_study_imports_nothing_at_the_coordinator_and_runs_after_a_restart(
    tmp_path: Path, mark: Path
) -> None:
    async def scenario(edge: Edge) -> None:
        async with connect(edge.operator()) as lead:
            seen = await lead.submit(study(), start())
            assert (seen.study_id, seen.state) == (study().id, "running")
            assert (await lead.submit(study(), start())).study_id == study().id  # again: the same study
        runner = edge.coordinator.runners[study().id]
        async with asyncio.timeout(10):
            while not runner.is_open:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        assert not list(edge.coordinator.incoming.iterdir())
        again = Coordinator(edge.workspace.coordinator_state)
        again.resume()
        model = again.runners[study().id]
        model._load()
        assert model._model.current.digest.hex() == study().study.initial
        assert model._model.parameters == start().whole.size
        await again.close()

    at_the_edge(tmp_path, scenario)
    assert not mark.exists()


def test_a_study_of_the_coordinators_own_file_does_not_choose_what_is_imported(
    tmp_path: Path, mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = Coordinator(tmp_path / "state", tasks=["imported_by_a_study:Other"])  # word for word, not by its module
    with pytest.raises(TaskNotAllowedError, match=r"is not allowed by \[coordinator\] tasks"):
        made.prepare(study())
    assert not mark.exists()
    assert not stored(made, study())
    # It is this check and no other: without it the module runs.
    monkeypatch.setattr(first_models, "require_allowed", lambda *_: None)
    made.prepare(study())
    assert mark.exists()


def test_what_the_file_lists_is_imported_for_its_own_studies(tmp_path: Path, mark: Path) -> None:
    made = Coordinator(tmp_path / "state", tasks=[NAME])
    assert made.prepare(study()).outcome == "running"
    assert mark.exists()


def test_an_installed_task_needs_no_list_and_one_that_is_not_here_is_told_the_way(tmp_path: Path) -> None:
    made = Coordinator(tmp_path / "state", tasks=["nowhere_at_all:Line"])
    assert made.prepare(study("breast-cancer")).outcome == "running"
    with pytest.raises(TaskUnavailableError, match="is not installed at this coordinator") as caught:
        made.prepare(study("digit"))
    assert "secure-fl study submit" in caught.value.hint
    with pytest.raises(TaskUnavailableError, match="cannot be imported"):
        made.prepare(study("nowhere_at_all:Line"))


def test_a_study_from_before_first_models_were_kept_is_taken_up_if_its_task_is_allowed(
    tmp_path: Path, mark: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, other = study(), study("breast-cancer")

    def taken_up() -> list[str]:
        made = Coordinator(tmp_path / "state")
        made.resume()
        asyncio.run(made.close())
        return list(made.runners)

    store = Store.in_folder(tmp_path / "state")
    for each in (wanted, other):
        store.add_study(each.id, each.canonical(), now=1.0)
    store.close()
    with caplog.at_level(logging.ERROR):
        assert taken_up() == [other.id]
    assert f"study {wanted.id[:12]} is not taken up: task {NAME!r} is not allowed by [coordinator] tasks" in caplog.text
    assert "list it, word for word" in caplog.text
    assert not mark.exists()
    # Without the check the same start imports it.
    monkeypatch.setattr(first_models, "require_allowed", lambda *_: None)
    assert set(taken_up()) == {wanted.id, other.id}
    assert mark.exists()


def test_a_study_that_has_ended_stays_known_and_is_not_imported_even_to_be_stopped(tmp_path: Path, mark: Path) -> None:
    store = Store.in_folder(tmp_path / "state")
    store.add_study(study().id, study().canonical(), now=1.0)
    store.end_study(study().id, state="finished")
    store.close()

    async def run() -> None:
        made = Coordinator(tmp_path / "state")
        made.resume()
        runner = made.runners[study().id]
        await made.stop(runner)
        assert runner.outcome == "finished"
        await made.close()

    asyncio.run(run())
    assert not mark.exists()


def test_the_doctor_imports_nothing_either(tmp_path: Path, mark: Path, capsys: pytest.CaptureFixture[str]) -> None:
    authority = Authority.create(tmp_path, consortium="test")
    authority.issue("coordinator", "hub", hosts=("127.0.0.1",)).save(tmp_path)
    file = tmp_path / "coordinator.toml"
    file.write_bytes(tomli_w.dumps({"coordinator": {"certificate": "coordinator-hub.pem"}}).encode())
    (tmp_path / "study.toml").write_bytes(tomli_w.dumps({"task": {"name": NAME}}).encode())
    doctor.main([str(file), "--study", str(tmp_path / "study.toml")])
    assert "study: study can run here" in capsys.readouterr().out
    assert not mark.exists()


# --- what is taken for a first model --------------------------------------------------------------------------------


@pytest.fixture
def operator(tmp_path: Path) -> Certificate:
    return Authority.create(tmp_path / "pki", consortium="x").issue("operator", "lead").certificate


def parts(first: FirstModel | None = None, offered: Study | None = None) -> list[pb.SubmitPart]:
    """A whole submission."""
    offered = offered or study()
    return [request_of(offered, first or start().first_model()), *chunks_of(offered.id, start())]


def submitted(folder: Path, operator: Certificate, sent: list[pb.SubmitPart], **limits: Any) -> list[str]:
    """What the coordinator says to a stream of parts, by kind. Nothing of a refused one stays."""

    async def run() -> list[str]:
        async def stream() -> AsyncIterator[pb.SubmitPart]:
            for part in sent:
                yield part

        made = Coordinator(folder / "state", **limits)
        try:
            return [str(reply.WhichOneof("body")) async for reply in Operations(made).Submit(stream(), operator)]
        except SecureFLError:
            assert not stored(made, study())
            assert not made.incoming.exists() or not list(made.incoming.iterdir())
            raise
        finally:
            await made.close()

    return asyncio.run(run())


def test_a_whole_submission_is_taken(tmp_path: Path, operator: Certificate) -> None:
    assert submitted(tmp_path, operator, parts()) == ["wanted", "status"]


def other_values(first: FirstModel) -> FirstModel:
    return replace(first, sha256=hashlib.sha256(b"another model").digest())


def other_names(first: FirstModel) -> FirstModel:
    (shape, *rest) = first.layout.shapes
    return replace(first, layout=Layout((replace(shape, name="other"), *rest)))


def shipping(first: FirstModel) -> FirstModel:
    extra = BlockShape(name="@extra", tensors=(TensorShape(name="values", shape=(0,)),))
    return replace(first, layout=Layout((*first.layout.shapes, extra)))


@pytest.mark.parametrize("change", [other_values, other_names, shipping])
def test_another_model_than_the_study_names_is_refused_before_it_is_sent(
    tmp_path: Path, operator: Certificate, change: Callable[[FirstModel], FirstModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = parts(change(start().first_model()))
    with pytest.raises((InitialModelError, LayoutMismatchError)):
        submitted(tmp_path, operator, sent)
    # It is this check and no other.
    monkeypatch.setattr(FirstModel, "require", lambda *_, **__: None)
    with pytest.raises(MalformedMessageError if change is other_values else AssertionError):
        assert submitted(tmp_path, operator, sent) != ["wanted", "status"]


def test_other_bytes_than_announced_are_refused(
    tmp_path: Path, operator: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent = parts()
    sent[1].chunk.data = sent[1].chunk.data[:-4] + b"\x00\x00\x00\x40"
    with pytest.raises(MalformedMessageError, match="does not match its digest"):
        submitted(tmp_path, operator, sent)


def test_a_model_with_nan_is_refused(tmp_path: Path, operator: Certificate) -> None:
    blocks = {name: np.full_like(values, np.nan) for name, values in start().blocks.items()}
    broken = replace(start(), blocks=blocks)
    first = broken.first_model()
    named = study().model_copy(update={"study": study().study.model_copy(update={"initial": first.digest})})
    sent = [request_of(named, first), *chunks_of(named.id, broken)]
    with pytest.raises(InitialModelError, match="NaN"):
        submitted(tmp_path, operator, sent)


@pytest.mark.parametrize(
    ("spoil", "match"),
    [
        (lambda sent: sent[:1], "ends before its model is whole"),
        (lambda sent: sent[1:], "begins with its study"),
        (lambda sent: [sent[0], sent[0]], "ends before its model is whole"),
        (lambda sent: [sent[0], sent[2], sent[1]], "out of order"),
        (lambda sent: [], "begins with its study"),
    ],
)
def test_a_submission_that_is_not_whole_is_refused(
    tmp_path: Path, operator: Certificate, spoil: Callable[[list[pb.SubmitPart]], list[pb.SubmitPart]], match: str
) -> None:
    with pytest.raises(MalformedMessageError, match=match):
        submitted(tmp_path, operator, spoil(parts()))


# --- many submissions at once ---------------------------------------------------------------------------------------


def half_submissions(folder: Path, operator: Certificate, *, at_once: int) -> tuple[int, list[SecureFLError], int]:
    """So many operators send half a model and then nothing: files meanwhile, who was refused, files afterwards."""

    async def run() -> tuple[int, list[SecureFLError], int]:
        made = Coordinator(folder / "state", model_bytes=start().first_model().size)
        arrived, go_on = asyncio.Semaphore(0), asyncio.Event()
        refused: list[SecureFLError] = []

        async def half() -> AsyncIterator[pb.SubmitPart]:
            yield parts()[0]
            yield parts()[1]
            arrived.release()  # The first half is written when the next part is asked for.
            await go_on.wait()

        async def submit_half() -> None:
            try:
                async for _ in Operations(made).Submit(half(), operator):
                    pass
            except MalformedMessageError:
                pass  # It ends before its model is whole.
            except SecureFLError as error:
                refused.append(error)
                arrived.release()

        senders = [asyncio.create_task(submit_half()) for _ in range(at_once)]
        async with asyncio.timeout(30):
            for _ in senders:
                await arrived.acquire()
        there = len(list(made.incoming.iterdir()))
        go_on.set()
        await asyncio.gather(*senders)
        left = len(list(made.incoming.iterdir()))
        await made.close()
        return there, refused, left

    return asyncio.run(run())


@pytest.mark.parametrize("checked", [True, False], ids=["shipped", "without the check"])
def test_half_submissions_do_not_fill_the_disk(
    tmp_path: Path, operator: Certificate, monkeypatch: pytest.MonkeyPatch, checked: bool
) -> None:
    assert len(parts()) > 2  # so that there is such a thing as half of it
    monkeypatch.setattr(submission_room, "MESSAGE_BYTES", 0)
    if not checked:
        monkeypatch.setattr(SubmissionRoom, "taken", lambda *_: nullcontext())
    there, refused, left = half_submissions(tmp_path, operator, at_once=8)
    assert there == (2 if checked else 8)  # files of as many bytes as [limits] model_bytes each
    assert [type(error) for error in refused] == [SubmissionsFullError] * (8 - there)
    assert left == 0


def test_a_submission_that_stands_still_gives_its_room_back(
    tmp_path: Path, operator: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.operations._PART_SECONDS", 0.05)

    async def run() -> None:
        async def silent() -> AsyncIterator[pb.SubmitPart]:
            yield parts()[0]
            await asyncio.sleep(60)

        made = Coordinator(tmp_path / "state")
        with pytest.raises(NetworkError, match=r"nothing came of a submission for 0\.05 s"):
            _ = [reply async for reply in Operations(made).Submit(silent(), operator)]
        assert vars(made.room)["_taken"] == 0
        await made.close()

    asyncio.run(run())


def test_who_is_refused_for_want_of_room_is_told_so_and_may_come_again(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        room = edge.coordinator.room
        async with connect(edge.operator()) as lead:
            with (
                room.taken(vars(room)["_most"] - MESSAGE_BYTES),
                pytest.raises(SubmissionsFullError, match="models that others are submitting take") as refused,
            ):
                await lead.submit(study(), start())
            assert "submit again in a few minutes" in refused.value.hint
            assert (await lead.submit(study(), start())).state == "running"
        async with asyncio.timeout(20):
            while vars(room)["_taken"]:  # noqa: ASYNC110 - the lead has its answer before the room is given back
                await asyncio.sleep(0.01)

    at_the_edge(tmp_path, scenario)


def test_bounds_of_a_request() -> None:
    (request, *_) = parts()
    older = pb.SubmitPart(request=pb.SubmitRequest(settings=request.request.settings))
    with pytest.raises(MalformedMessageError, match="without its first model"):
        read_request(older)
    for change in (
        {"size": request.request.first.object.size + 4},
        {"size": 2**60},
        {"sha256": b"short"},
    ):
        wrong = pb.SubmitPart.FromString(request.SerializeToString())
        for key, value in change.items():
            setattr(wrong.request.first.object, key, value)
        with pytest.raises(MalformedMessageError):
            read_request(wrong)
    for facts in ({"kind": "clustering"}, {"parameters": 1}):
        with pytest.raises(LayoutMismatchError):
            replace(start().first_model(), **facts)


def test_what_is_known_of_a_first_model_survives_a_file_and_a_damaged_file_is_named(tmp_path: Path) -> None:
    files = BulkFiles(tmp_path)
    assert first_models.load(files) is None
    files.first.write_bytes(start().first_model().to_json())
    assert first_models.load(files) == start().first_model()
    files.first.write_bytes(b"{}")
    with pytest.raises(StorageError, match=r"first\.json: cannot be read"):
        first_models.load(files)


# --- what the operator is told --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "message", "advice"),
    [
        (
            ModelTooLargeError("the model has 84 bytes, more than the 8 allowed", advice="raise [limits] model_bytes"),
            "the model has 84 bytes, more than the 8 allowed",
            "raise [limits] model_bytes",
        ),
        (SettingsError("bare"), "bare", ""),
        (UnknownNameError("strategy", "fedx", nearest=None, known=("fedavg",)), "unknown strategy 'fedx'", "known"),
    ],
)
def test_every_refusal_of_a_submission_comes_with_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: SettingsError, message: str, advice: str
) -> None:
    def refuse(*_: object) -> None:
        raise error

    async def scenario(edge: Edge) -> None:
        monkeypatch.setattr(edge.coordinator, "examine", refuse)
        async with connect(edge.operator()) as lead:
            with pytest.raises(type(error)) as refused:
                await lead.submit(study(), start())
        assert refused.value.message.startswith(f"the coordinator says: {message}")
        assert advice in refused.value.hint

    at_the_edge(tmp_path, scenario)


def test_a_model_that_is_too_large_is_refused_with_the_limit_before_it_is_sent(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        vars(edge.coordinator)["_model_bytes"] = 8
        async with connect(edge.operator()) as lead:
            with pytest.raises(ModelTooLargeError, match="more than the 8 allowed here") as refused:
                await lead.submit(study(), start())
        assert "[limits] model_bytes" in refused.value.hint
        assert not edge.coordinator.incoming.exists()

    at_the_edge(tmp_path, scenario)


def test_what_the_coordinators_disk_says_stays_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise StorageError("/srv/secret/state: no space")

    async def scenario(edge: Edge) -> None:
        monkeypatch.setattr(edge.coordinator, "examine", refuse)
        async with connect(edge.operator()) as lead:
            with pytest.raises(StorageError) as refused:
                await lead.submit(study(), start())
        assert refused.value.message == "the coordinator answered: Storage"
        assert "ask whoever runs the coordinator" in refused.value.hint

    at_the_edge(tmp_path, scenario)


def test_who_is_no_operator_is_told_a_code_and_nothing_else(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        node = edge.node_file()
        section = {"operator": {**node.node.model_dump(include={"coordinator", "fingerprint"}),
                                "certificate": str(node.certificate_path), "ca": str(tmp_path / "run" / "ca.pem"),
                                "crl": str(tmp_path / "run" / "pki" / "crl.pem")}}  # fmt: skip
        (tmp_path / "as_node.toml").write_bytes(tomli_w.dumps(section).encode())
        async with connect(OperatorFile.read(tmp_path / "as_node.toml")) as lead:
            with pytest.raises(CertificateError) as refused:
                await lead.submit(study(), start())
        assert refused.value.message == "the coordinator answered: Certificate"

    at_the_edge(tmp_path, scenario)


def test_a_lead_whose_model_is_not_the_studys_sends_nothing(tmp_path: Path) -> None:
    other = replace(start(), blocks={name: values + np.float32(1) for name, values in start().blocks.items()})

    async def scenario(edge: Edge) -> None:
        async with connect(edge.operator()) as lead:
            with pytest.raises(InitialModelError, match=r"is not the one that study\.initial names"):
                await lead.submit(study(), other)

    at_the_edge(tmp_path, scenario)


def test_a_broken_link_leaves_nothing_and_the_study_is_submitted_again(tmp_path: Path) -> None:
    async def scenario(edge: Edge) -> None:
        async with connect(edge.operator()) as lead:
            call = lead._stub.Submit(timeout=10)
            await call.write(parts()[0])
            assert (await call.read()).wanted
            await call.write(parts()[1])
            call.cancel()
            with pytest.raises(NetworkError), typed_errors():
                await call.read()
            async with asyncio.timeout(5):
                while not edge.coordinator.incoming.exists() or list(edge.coordinator.incoming.iterdir()):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not stored(edge.coordinator, study())
            assert (await lead.submit(study(), start())).state == "running"

    at_the_edge(tmp_path, scenario)


def test_the_same_study_in_this_process(tmp_path: Path) -> None:
    async def run() -> None:
        made = Coordinator(tmp_path / "state")
        first = await submit(made, study(LINE))
        assert await submit(made, study(LINE)) is first
        await made.close()

    asyncio.run(run())
