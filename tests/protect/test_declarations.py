"""What a list of declarations must be before circles are formed from it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl.errors import SecureFLError
from secure_fl.protect.contract import Message
from secure_fl.protect.declarations import Declared, Declaring, OpenedDeclarations, make_declaration
from secure_fl.rpc import protect_cohort_pb2 as pb
from tests.protect.cohorts import InMemory, context, contribution, host, layout, play
from tests.protect.members import member

STUDY, OTHER = "5a" * 32, "5b" * 32
NAMES = ("a", "b", "c", "d")
ROSTER = {name: member(name).certificate.fingerprint for name in NAMES}


def listed(**blocks: list[str]) -> pb.Declarations:
    """Everybody's word."""
    return pb.Declarations(
        declarations=[make_declaration(STUDY, member(name), held) for name, held in sorted(blocks.items())]
    )


def read(message: pb.Declarations, *, study_id: str = STUDY) -> Declared:
    return Declared.read(message.SerializeToString(deterministic=True), study_id=study_id, roster=ROSTER)


def test_a_list_is_read_as_it_was_signed() -> None:
    assert read(listed(a=["y", "x"], b=[])).blocks == {"a": frozenset("xy"), "b": frozenset()}


def _foreign(message: pb.Declarations) -> None:
    message.declarations[0].CopyFrom(make_declaration(STUDY, member("stranger"), ["x"]))


def _other_study(message: pb.Declarations) -> None:
    message.declarations[0].CopyFrom(make_declaration(OTHER, member("a"), ["x"]))


def _for_another(message: pb.Declarations) -> None:
    message.declarations[0].CopyFrom(make_declaration(STUDY, member("c"), ["x"]))
    message.declarations[0].node = "a"


def _more_blocks(message: pb.Declarations) -> None:
    message.declarations[0].blocks.append("z")


def _faster(message: pb.Declarations) -> None:
    message.declarations[0].pace = 1


def _twice(message: pb.Declarations) -> None:
    message.declarations.append(message.declarations[-1])


def _backwards(message: pb.Declarations) -> None:
    first, second = list(message.declarations)
    del message.declarations[:]
    message.declarations.extend([second, first])


@pytest.mark.parametrize("forge", [_foreign, _other_study, _for_another, _more_blocks, _faster, _twice, _backwards])
def test_a_forged_list_is_refused(forge: Callable[[pb.Declarations], None]) -> None:
    message = listed(a=["x"], b=["x"])
    read(message)
    forge(message)
    with pytest.raises(SecureFLError):
        read(message)


@given(st.binary(max_size=200))
def test_anything_else_is_refused_with_a_typed_error(raw: bytes) -> None:
    try:
        read_back = Declared.read(raw, study_id=STUDY, roster=ROSTER)
    except SecureFLError:
        return
    assert read_back.raw == raw == b""  # The empty list is a list.


def test_a_round_of_declarations_opens_the_list() -> None:
    about = context(*NAMES, blocks=layout(body=3, head=2), protection=Declaring())
    everybody = {
        name: contribution(body=[1, 2, 3]) if name == "d" else contribution(body=[1, 2, 3], head=[4, 5])
        for name in NAMES
    }
    opened = play(Declaring(), about, everybody)
    assert isinstance(opened, OpenedDeclarations)
    found = Declared.read(opened.declarations, study_id=about.study_id, roster=about.roster)
    assert found.blocks == {**dict.fromkeys("abc", frozenset({"body", "head"})), "d": frozenset({"body"})}


@pytest.mark.parametrize("said", [("b", ["body"]), ("a", ["elsewhere"])])
def test_the_coordinator_takes_a_site_s_own_word_about_blocks_there_are(said: tuple[str, list[str]]) -> None:
    about = context(*NAMES, blocks=layout(body=3, head=2), protection=Declaring())
    half = Declaring().coordinator(about)
    half.begin()
    body = make_declaration(about.study_id, member(said[0]), said[1]).SerializeToString(deterministic=True)
    with pytest.raises(SecureFLError):
        half.accept("a", Message(body=body), InMemory(b""))


def test_a_site_says_nothing_else(tmp_path: object) -> None:
    about = context(*NAMES, protection=Declaring())
    node = Declaring().node(about, contribution(body=[1, 2, 3]), host("a"))
    for phase, question in (("upload", Message()), ("declare", Message(body=b"?"))):
        with pytest.raises(SecureFLError):
            node.answer(phase, question)
