"""A secret shows itself only where it is asked to."""

from __future__ import annotations

import copy
import hmac
import json
import pickle

import pytest

from secure_fl.secret import Secret

VALUE = b"correct horse battery staple"


@pytest.mark.parametrize("show", [repr, str, "{}".format, "%s".__mod__, lambda secret: f"{secret!r}", ascii])
def test_a_secret_is_redacted_wherever_it_is_printed(show: object) -> None:
    shown = show(Secret(VALUE))  # type: ignore[operator]
    assert "Secret(" in shown
    assert "horse" not in shown
    assert VALUE.hex() not in shown


def test_a_secret_is_redacted_inside_other_values() -> None:
    assert "horse" not in repr({"key": [Secret(VALUE)]})


def test_a_secret_is_neither_pickled_nor_copied_nor_json() -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy, json.dumps):
        with pytest.raises(TypeError):
            attempt(Secret(VALUE))


def test_a_secret_has_no_hash_and_no_dictionary() -> None:
    with pytest.raises(TypeError, match="unhashable"):
        hash(Secret(VALUE))
    assert not hasattr(Secret(VALUE), "__dict__")


def test_secrets_compare_by_value_and_only_with_secrets() -> None:
    assert Secret(VALUE) == Secret(bytearray(VALUE))
    assert Secret(VALUE) != Secret(VALUE + b"!")
    assert Secret(VALUE) != Secret(VALUE[:-1] + b"x")
    assert Secret(VALUE) != VALUE
    assert Secret(VALUE) != str(VALUE)


def test_secrets_compare_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[tuple[bytes, bytes]] = []

    def compare(left: bytes, right: bytes) -> bool:
        compared.append((bytes(left), bytes(right)))
        return False

    monkeypatch.setattr(hmac, "compare_digest", compare)
    # The verdict is that of compare_digest, even for equal values: nothing compares before or after it.
    assert Secret(VALUE) != Secret(VALUE)
    assert compared == [(VALUE, VALUE)]


def test_a_wiped_secret_is_gone() -> None:
    secret = Secret(VALUE)
    buffer = secret._value
    held = memoryview(bytearray(buffer))
    assert secret.reveal() == VALUE == bytes(held)
    secret.wipe()
    assert not buffer
    with pytest.raises(ValueError, match="wiped"):
        secret.reveal()
    assert secret != Secret(VALUE)


def test_wiping_overwrites_before_it_forgets() -> None:
    class Watched(bytearray):
        cleared: bytes | None = None

        def clear(self) -> None:
            self.cleared = bytes(self)
            super().clear()

    secret = Secret(VALUE)
    watched = secret._value = Watched(VALUE)
    secret.wipe()
    assert watched.cleared == bytes(len(VALUE))


def test_a_secret_does_not_share_the_callers_buffer() -> None:
    mine = bytearray(VALUE)
    secret = Secret(mine)
    mine[0] ^= 1
    assert secret.reveal() == VALUE
