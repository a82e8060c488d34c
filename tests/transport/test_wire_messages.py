"""Every bound on what is said in a session is checked on receipt."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from secure_fl import limits
from secure_fl.errors import MalformedMessageError, VersionMismatchError
from secure_fl.messages import parse
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.transport.wire import (
    check_coordinator_message,
    check_download,
    check_node_message,
    check_study_id,
    is_name,
    negotiate,
    our_versions,
)
from tests.protect.laws import law
from tests.transport.messages import DIGEST, STUDY_ID, announced, announcement

LONGEST_NAME = "n" * limits.NAME_CHARS
NO_NAMES = [
    "",
    ".",
    "..",
    "../x",
    "a/b",
    "a\\b",
    "/etc",
    "a..b",
    ".x",
    "-x",
    "a b",
    "a\n",
    "a\x00",
    "ä",
    LONGEST_NAME + "n",
]


@pytest.mark.parametrize("name", ["a", "north", "site-1", "Block_2.weight", "@metrics", LONGEST_NAME])
def test_plain_names_are_names(name: str) -> None:
    assert is_name(name)


@pytest.mark.parametrize("name", NO_NAMES)
def test_paths_and_the_like_are_no_names(name: str) -> None:
    assert not is_name(name)


@law
@given(st.text(max_size=8))
def test_a_name_never_leaves_its_folder(name: str) -> None:
    if is_name(name):
        assert name.isascii()
        assert not set(name) & set("/\\\x00\n")
        assert name not in (".", "..")


@pytest.mark.parametrize(
    "study_id", ["", "5a" * 31, "5a" * 33, "5A" * 32, "../" + "a" * 61, "5a" * 32 + "\n", "é" * 64]
)
def test_a_study_id_is_64_hexadecimal_digits(study_id: str) -> None:
    check_study_id(STUDY_ID)
    with pytest.raises(MalformedMessageError):
        check_study_id(study_id)


# --- parsing ----------------------------------------------------------------------------------------------------


def test_bytes_that_do_not_decode_are_refused_without_being_repeated() -> None:
    with pytest.raises(MalformedMessageError) as caught:
        parse(pb.NodeMessage, b"\xffsecret")
    assert "secret" not in str(caught.value)
    assert caught.value.__cause__ is None


def test_parsing_is_the_inverse_of_serialising() -> None:
    message = announced()
    assert parse(pb.CoordinatorMessage, message.SerializeToString()) == message


# --- versions ---------------------------------------------------------------------------------------------------


def versions(lowest: int, highest: int) -> pb.VersionRange:
    return pb.VersionRange(lowest=lowest, highest=highest)


@pytest.fixture
def speaks_2_to_4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PROTOCOL_LOWEST", 2)
    monkeypatch.setattr(limits, "PROTOCOL_HIGHEST", 4)


@pytest.mark.usefixtures("speaks_2_to_4")
@pytest.mark.parametrize(
    ("lowest", "highest", "agreed"), [(2, 4, 4), (1, 2, 2), (1, 9, 4), (3, 3, 3), (4, 9, 4), (0, 3, 3)]
)
def test_the_highest_common_version_is_spoken(lowest: int, highest: int, agreed: int) -> None:
    assert negotiate(versions(lowest, highest)) == agreed


@pytest.mark.usefixtures("speaks_2_to_4")
@pytest.mark.parametrize(("lowest", "highest"), [(0, 0), (1, 1), (5, 9), (4, 3), (9, 2)])
def test_without_a_common_version_there_is_no_session(lowest: int, highest: int) -> None:
    with pytest.raises(VersionMismatchError, match=f"protocol {lowest}–{highest}, this one 2–4"):
        negotiate(versions(lowest, highest))


def test_this_build_understands_itself_and_a_hello_without_versions_is_refused() -> None:
    assert negotiate(our_versions()) == limits.PROTOCOL_HIGHEST
    with pytest.raises(VersionMismatchError):
        negotiate(pb.Hello().versions)


# --- what a node says -------------------------------------------------------------------------------------------

NODE_MESSAGES = [
    pb.NodeMessage(hello=pb.Hello(versions=our_versions(), software="s" * limits.NAME_CHARS)),
    pb.NodeMessage(heartbeat=pb.Heartbeat(sequence=2**64 - 1)),
    pb.NodeMessage(study_id=STUDY_ID, study_answer=pb.StudyAnswer(refusal="Refused")),
    pb.NodeMessage(study_id=STUDY_ID, sit_out=pb.SitOut(round=1, attempt=1, reason="c" * limits.CODE_CHARS)),
]


@pytest.mark.parametrize("message", NODE_MESSAGES)
def test_well_formed_messages_of_a_node_pass(message: pb.NodeMessage) -> None:
    check_node_message(message)


@pytest.mark.parametrize(
    "message",
    [
        pb.NodeMessage(),
        pb.NodeMessage(study_id=STUDY_ID),
        pb.NodeMessage(hello=pb.Hello(software="s" * (limits.NAME_CHARS + 1))),
        pb.NodeMessage(study_answer=pb.StudyAnswer(accepted=True)),
        pb.NodeMessage(study_id="..", sit_out=pb.SitOut(reason="Late")),
        pb.NodeMessage(study_id=STUDY_ID, study_answer=pb.StudyAnswer(refusal="c" * (limits.CODE_CHARS + 1))),
        pb.NodeMessage(study_id=STUDY_ID, study_answer=pb.StudyAnswer(refusal="no, because")),
        pb.NodeMessage(study_id=STUDY_ID, sit_out=pb.SitOut(reason="Late\n")),
        pb.NodeMessage(study_id=STUDY_ID, sit_out=pb.SitOut(reason="c" * (limits.CODE_CHARS + 1))),
    ],
)
def test_malformed_messages_of_a_node_are_refused(message: pb.NodeMessage) -> None:
    with pytest.raises(MalformedMessageError):
        check_node_message(message)


# --- what the coordinator says ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        announced(),
        pb.CoordinatorMessage(welcome=pb.Welcome(version=1, software="s" * limits.NAME_CHARS)),
        pb.CoordinatorMessage(heartbeat=pb.Heartbeat()),
        pb.CoordinatorMessage(study_id=STUDY_ID, study_offer=pb.StudyOffer(settings=bytes(limits.SETTINGS_BYTES))),
        pb.CoordinatorMessage(study_id=STUDY_ID, round_closed=pb.RoundClosed(reason="CohortTooSmall")),
        pb.CoordinatorMessage(study_id=STUDY_ID, study_closed=pb.StudyClosed(finished=True)),
    ],
)
def test_well_formed_messages_of_the_coordinator_pass(message: pb.CoordinatorMessage) -> None:
    check_coordinator_message(message)


@pytest.mark.parametrize(
    "message",
    [
        pb.CoordinatorMessage(),
        pb.CoordinatorMessage(welcome=pb.Welcome(version=1, software="s" * (limits.NAME_CHARS + 1))),
        pb.CoordinatorMessage(study_id="../x", study_offer=pb.StudyOffer()),
        pb.CoordinatorMessage(announcement=announcement()),
        pb.CoordinatorMessage(study_closed=pb.StudyClosed()),
        pb.CoordinatorMessage(study_id=STUDY_ID, study_offer=pb.StudyOffer(settings=bytes(limits.SETTINGS_BYTES + 1))),
        pb.CoordinatorMessage(study_id=STUDY_ID, round_closed=pb.RoundClosed(reason="a b")),
        pb.CoordinatorMessage(study_id=STUDY_ID, study_closed=pb.StudyClosed(reason="c" * (limits.CODE_CHARS + 1))),
    ],
)
def test_malformed_messages_of_the_coordinator_are_refused(message: pb.CoordinatorMessage) -> None:
    with pytest.raises(MalformedMessageError):
        check_coordinator_message(message)


def _invite(*names: str) -> Callable[[pb.PhaseAnnouncement], None]:
    def change(message: pb.PhaseAnnouncement) -> None:
        message.ClearField("invited")
        message.invited.extend(names)

    return change


def _set(path: str, value: object) -> Callable[[pb.PhaseAnnouncement], None]:
    def change(message: pb.PhaseAnnouncement) -> None:
        *parents, last = path.split(".")
        target = message
        for parent in parents:
            target = getattr(target, parent)
        setattr(target, last, value)

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(_set("phase", name) for name in NO_NAMES),
        *(_set("payload.phase", name) for name in NO_NAMES),
        *(_set("payload.protection", name) for name in NO_NAMES),
        *(_invite("north", name) for name in NO_NAMES),
        _invite(),
        _invite("north", "south", "north"),
        _invite(*(f"n{i}" for i in range(limits.NODES + 1))),
        _set("kind", pb.ROUND_KIND_UNSPECIFIED),
        _set("kind", 4),
        _set("phase", "reveal"),  # and the payload says "upload"
        _set("payload.body", bytes(limits.PAYLOAD_BYTES + 1)),
        _set("model.digest", b""),
        _set("model.digest", DIGEST[:-1]),
        _set("model.digest", DIGEST + b"\x00"),
        _set("model.object.sha256", DIGEST[:-1]),
        _set("model.object.size", limits.OBJECT_BYTES + 1),
        _set("model.object.size", 2**64 - 1),
        _set("bulk.sha256", b""),
        _set("bulk.sha256", DIGEST * 2),
        _set("bulk.size", limits.OBJECT_BYTES + 1),
        _set("agreements", bytes(limits.AGREEMENTS_BYTES + 1)),
    ],
)
def test_malformed_announcements_are_refused(change: Callable[[pb.PhaseAnnouncement], None]) -> None:
    message = announcement()
    change(message)
    with pytest.raises(MalformedMessageError):
        check_coordinator_message(announced(message))


@pytest.mark.parametrize(
    "change",
    [
        _invite(*(f"n{i}" for i in range(limits.NODES))),
        _set("payload.body", bytes(limits.PAYLOAD_BYTES)),
        _set("model.object.size", limits.OBJECT_BYTES),
        _set("kind", pb.ROUND_KIND_EVALUATE),
        _set("agreements", bytes(limits.AGREEMENTS_BYTES)),
        lambda message: message.ClearField("bulk"),
    ],
)
def test_announcements_at_their_bounds_pass(change: Callable[[pb.PhaseAnnouncement], None]) -> None:
    message = announcement()
    change(message)
    check_coordinator_message(announced(message))


# --- downloads --------------------------------------------------------------------------------------------------


def test_bounds_of_a_download() -> None:
    check_download(pb.DownloadRequest(study_id=STUDY_ID, sha256=DIGEST, offset=limits.OBJECT_BYTES))
    for request in (
        pb.DownloadRequest(sha256=DIGEST),
        pb.DownloadRequest(study_id=STUDY_ID),
        pb.DownloadRequest(study_id=STUDY_ID, sha256=DIGEST[:-1]),
        pb.DownloadRequest(study_id=STUDY_ID, sha256=DIGEST, offset=limits.OBJECT_BYTES + 1),
    ):
        with pytest.raises(MalformedMessageError):
            check_download(request)
