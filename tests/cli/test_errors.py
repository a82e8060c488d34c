"""What a person sees when something is wrong: one line, advice, a distinct exit code, no traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import secure_fl.cli
from secure_fl.errors import StorageError


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """The console script in this process: its exit code and what it wrote to standard error."""
    monkeypatch.setattr(sys, "argv", ["secure-fl", *arguments])
    with pytest.raises(SystemExit) as left:
        secure_fl.cli.main()
    return int(left.value.code or 0), capsys.readouterr().err


CASES = {
    "missing study": (["run", "nowhere.toml"], 3, "nowhere.toml: no such file", "study new"),
    "invalid TOML": (["run", "broken.toml"], 3, "not valid TOML", ""),
    "unknown section": (["run", "--set", "protektion.bits=8"], 3, "unknown key 'protektion'", "protection"),
    "unknown key": (["run", "--set", "study.roundz=3"], 3, "unknown key 'study.roundz'", "rounds"),
    "unknown strategy key": (["run", "--set", "strategy.epocs=3"], 3, "'strategy.epocs'", "epochs"),
    "unknown task key": (["run", "--set", "task.hiden=3"], 3, "'task.hiden'", "hidden"),
    "unknown strategy": (["run", "--strategy", "fedavgg"], 3, "unknown strategy 'fedavgg'", "fedavg"),
    "unknown task": (["run", "--task", "digitz"], 3, "unknown task 'digitz'", "digits"),
    "task not installed": (["run", "--task", "no_such_module:Task"], 3, "no_such_module", "install"),
    "unknown protection": (["run", "--protection", "nine"], 3, "unknown protection 'nine'", "none"),
    "unknown engine": (["run", "--engine", "procs"], 3, "unknown engine 'procs'", "processes"),
    "wrong type": (["run", "--set", "study.rounds=many"], 3, "study.rounds", ""),
    "out of range": (["run", "--set", "protection.bits=99"], 3, "protection.bits", ""),
    "malformed --set": (["run", "--set", "rounds"], 3, "expected key=value", "for example"),
    "too few sites": (["run", "--nodes", "2"], 3, "2 sites", "--nodes"),
    "folder in use": (["run", "--out", "used"], 3, "is not empty", "--out"),
    "DP without a price": (["run", "--set", "privacy.mode=dp-sgd"], 3, "privacy.epsilon and privacy.delta", "3.0"),
    "DP not there yet": (["run", "--set", "privacy.mode=distributed"], 3, "not available", "none"),
    "output is a file": (["run", "--out", "broken.toml"], 6, "broken.toml: is a file, not a folder", "another"),
    "samples into a file": (["sample", "digits", "a", "--out", "broken.toml"], 6, "broken.toml: is a file", "another"),
    "task into a file": (["task", "new", "wards", "--out", "broken.toml"], 6, "broken.toml: is a file", "another"),
    "authority in a file": (
        ["pki", "init", "broken.toml", "--consortium", "C"],
        6,
        "broken.toml: is a file",
        "another",
    ),
    "site in a file": (
        ["node", "new", "a", "--coordinator", "a.org:1", "--fingerprint", "ab" * 32, "--out", "broken.toml/a"],
        6,
        "broken.toml: is a file",
        "another",
    ),
    "study is a folder": (["study", "new", "/", "--force"], 6, "/: is a folder, not a file", "name a file"),
    "start is no model": (
        ["study", "new", "new.toml", "--from", "broken.toml"],
        3,
        "broken.toml: is not a safetensors file",
        "export",
    ),
    "DP under a gate": (
        [
            "run",
            "--json",
            "--strategy",
            "aifed",
            "--set",
            "strategy.gating=site",
            "--set",
            "privacy.mode=dp-sgd",
            "--set",
            "privacy.epsilon=3.0",
            "--set",
            "privacy.delta=1e-5",
        ],
        3,
        "with strategy.gating = \"site\" strategy 'aifed' looks at",
        'gating = "none"',
    ),
    "no section": (["run", "--set", "epochs=3"], 3, "did you mean 'strategy.epochs'?", "--set strategy.epochs=3"),
    "a slip and no section": (["run", "--set", "epoch=3"], 3, "did you mean 'strategy.epochs'?", "strategy.epochs=3"),
    "a section that is no table": (["run", "--set", "rounds=3"], 3, "did you mean 'study.rounds'?", "study.rounds=3"),
    "two sections": (["run", "--set", "clip=3"], 3, "'protection.clip' or 'privacy.clip'", "protection.clip=3"),
    "a name": (["run", "--set", "strategy=fedper"], 3, "did you mean 'strategy.name'?", "strategy.name=fedper"),
    "a table in JSON": (
        ["run", "--set", 'simulation.slow={"site-02":5.0}'],
        3,
        """'{"site-02":5.0}' is not a table in TOML""",
        '{"site-02"=5.0}',
    ),
    "empty study": (["run", "empty.toml"], 3, "empty.toml: has no settings in it", "study new"),
    "empty party": (["doctor", "empty.toml"], 3, "empty.toml: has no [node], [coordinator]", "a party's file"),
    "study exists": (["study", "new", "broken.toml"], 6, "exists already", "--force"),
}


@pytest.mark.parametrize(("arguments", "code", "says", "advises"), CASES.values(), ids=CASES.keys())
def test_a_mistake_is_one_line_with_advice(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    code: int,
    says: str,
    advises: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("broken.toml").write_text("x = = 1")
    Path("empty.toml").write_text("# nothing\n")
    Path("used").mkdir()
    Path("used/file").touch()
    left, text = run(monkeypatch, capsys, *arguments)
    assert left == code
    first, *rest = text.strip().splitlines()
    assert first.startswith("secure-fl: ")
    assert says in first
    assert advises in text
    assert len(rest) <= 1
    assert "Traceback" not in text


def test_a_full_disk_is_said_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("secure_fl.files.os.fsync", full)
    left, text = run(monkeypatch, capsys, "study", "new", str(tmp_path / "study.toml"))
    assert left == StorageError.exit_code
    assert "No space left on device" in text
    assert "free space" in text
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "says", "advises"),
    [
        (
            FileNotFoundError(2, "No such file or directory", "/x/y"),
            "/x/y: No such file or directory",
            "check the path",
        ),
        (PermissionError(13, "Permission denied", "/x/y"), "/x/y: Permission denied", "permissions"),
        (OSError("odd"), "OSError", "--debug"),
    ],
)
def test_whatever_the_system_refuses_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: OSError, says: str, advises: str
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("secure_fl.cli.study.Study.read_table", broken)
    left, text = run(monkeypatch, capsys, "study", "check", "x.toml")
    first, second = text.strip().splitlines()
    assert (left, first) == (StorageError.exit_code, f"secure-fl: {says}")
    assert advises in second


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["secure-fl", "--debug", "run", "nowhere.toml"])
    with pytest.raises(secure_fl.errors.SettingsError):
        secure_fl.cli.main()


def test_the_unexpected_is_one_line_too(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr("secure_fl.cli.study.Study.read_table", broken)
    left, text = run(monkeypatch, capsys, "study", "check", "x.toml")
    assert left == 70
    assert "RuntimeError" in text
    assert "secret detail" not in text
    assert "--debug" in text
