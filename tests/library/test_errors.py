"""Every failure has a name that crosses the wire, a status it travels as and an exit code."""

from __future__ import annotations

import grpc
import pytest

from secure_fl.errors import (
    CertificateError,
    CohortTooSmallError,
    SecureFLError,
    StorageError,
    UnknownNameError,
    by_code,
)
from secure_fl.transport.errors import ASK, remote_error


def family(root: type[SecureFLError] = SecureFLError) -> list[type[SecureFLError]]:
    return [root, *(cls for child in root.__subclasses__() for cls in family(child))]


EVERY = family()
named = pytest.mark.parametrize("cls", EVERY, ids=lambda cls: cls.__name__)


def code_of(cls: type[SecureFLError]) -> str:
    error = cls.__new__(cls)
    return error.code


def test_there_are_no_two_errors_of_one_name() -> None:
    assert len({code_of(cls) for cls in EVERY}) == len(EVERY) > 20


@named
def test_every_error_is_defined_in_one_file(cls: type[SecureFLError]) -> None:
    assert cls.__module__ == "secure_fl.errors"
    assert cls.__name__.endswith("Error")
    assert cls.__doc__


@named
def test_every_error_is_found_by_its_code(cls: type[SecureFLError]) -> None:
    assert by_code(code_of(cls)) is cls


@named
def test_every_error_can_be_reported_by_the_other_side(cls: type[SecureFLError]) -> None:
    error = remote_error(code_of(cls))
    assert type(error) is cls
    assert error.code == code_of(cls)
    assert str(error) == error.message == f"the coordinator answered: {code_of(cls)}"
    # What a class advises is for whoever has the disk; where it advises nothing, there is somebody to ask.
    if cls is CertificateError:
        assert "revoked, has expired or is of another role" in error.hint
        return
    assert error.hint == (cls.advice if cls.advice and not issubclass(cls, StorageError) else ASK)


@named
def test_every_error_has_a_status_and_an_exit_code(cls: type[SecureFLError]) -> None:
    assert cls.status in grpc.StatusCode.__members__
    assert cls.status != "OK"
    assert 1 <= cls.exit_code <= 125  # above that, shells speak of signals
    assert code_of(cls).isascii()
    assert code_of(cls).isalpha()  # what `wire` accepts as a code


@pytest.mark.parametrize("code", ["", "Nothing", "secure_fl.errors.Settings", "SettingsError", "Exception", "x" * 1000])
def test_a_code_of_another_version_is_the_root(code: str) -> None:
    assert by_code(code) is SecureFLError
    assert type(remote_error(code)) is SecureFLError


def test_errors_carry_what_they_say_as_fields() -> None:
    small = CohortTooSmallError(have=2, need=3, what="block 'head'")
    assert (small.have, small.need, small.code) == (2, 3, "CohortTooSmall")
    assert small.message == "block 'head': 2 contributors, at least 3 are needed"
    unknown = UnknownNameError("task", "digit", nearest="digits", known=("digits", "scans"))
    assert (unknown.kind, unknown.name, unknown.nearest) == ("task", "digit", "digits")
    assert unknown.hint == "known: digits, scans"


def test_where_nothing_is_known_no_list_is_promised() -> None:
    assert UnknownNameError("key", "task.hidden", nearest=None, known=()).hint == "leave it out: there is none"


def test_advice_is_the_class_own_unless_one_is_given() -> None:
    class_advice = by_code("Network")("x")
    assert class_advice.hint == by_code("Network").advice != ""
    assert by_code("Network")("x", advice="try harder").hint == "try harder"
    assert by_code("Network")("x", advice="").hint == ""
