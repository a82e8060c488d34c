"""SEAL's parameters are safe by two tables, and files of another form are noticed instead of misread."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from secure_fl.aggregation import RequestKind
from secure_fl.errors import ProtectionError
from secure_fl.protect.encrypted import seal_files
from secure_fl.protect.encrypted.seal_files import Seal
from secure_fl.protect.encrypted.terms import DEGREE, LARGEST_MODULUS_BITS, Terms, largest_modulus
from secure_fl.protect.primitives.packing import WORD
from tests.protect.encrypted.oracle import desk


def test_a_modulus_too_large_is_refused_by_our_table_and_by_seals(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = Terms.among(RequestKind.SUM, nodes=10, bits=16)
    object.__setattr__(terms, "modulus", largest_modulus(60, terms.plain_bits))
    with pytest.raises(ProtectionError, match="60 bits is not 256-bit secure"):
        Seal(terms)
    monkeypatch.setattr(seal_files, "LARGEST_MODULUS_BITS", {256: 109})
    with pytest.raises(ProtectionError, match="SEAL refuses"):
        Seal(terms)


def test_the_tables_agree() -> None:
    api = desk(RequestKind.SUM, 10, 16)[0].seal.api
    levels = {128: api.SEC_LEVEL_TYPE.TC128, 192: api.SEC_LEVEL_TYPE.TC192, 256: api.SEC_LEVEL_TYPE.TC256}
    assert {bits: api.CoeffModulus.MaxBitCount(DEGREE, level) for bits, level in levels.items()} == LARGEST_MODULUS_BITS


class Fake:
    """Something that is saved as it likes."""

    def __init__(self, content: bytes) -> None:
        self.content = content

    def save(self, path: str) -> None:
        Path(path).write_bytes(self.content)


def test_files_of_another_form_are_not_read() -> None:
    seal = desk(RequestKind.SUM, 10, 16)[0].seal
    whole = seal.header(len(seal.key) + 8 * DEGREE) + seal.key + bytes(8 * DEGREE)
    with seal.files() as files:
        assert not files.key_words(Fake(whole)).any()
        other_magic, other_compression, other_parameters = (bytearray(whole) for _ in range(3))
        other_magic[0] ^= 1
        other_compression[5] = 1  # zlib
        other_parameters[20] ^= 1
        for wrong in (whole[:-8], whole + bytes(8), other_magic, other_compression, other_parameters):
            with pytest.raises(ProtectionError, match="another form"):
                files.key_words(Fake(bytes(wrong)))
        for reader in (files.mask, files.body_and_seed, files.plaintext_words):
            with pytest.raises(ProtectionError, match="another form"):
                reader(Fake(seal.header(len(seal.key) + 8) + seal.key + bytes(8)))


def test_a_seed_of_another_generator_is_not_taken() -> None:
    scheme, _, cipher = desk(RequestKind.SUM, 10, 16)
    seal = scheme.seal
    with seal.files() as files:
        raw = bytearray(files._saved(cipher._encryptor.encrypt_zero_symmetric()))
        files.body_and_seed(Fake(seal.header(len(raw)) + raw))
        raw[-65] = 2  # SHAKE256
        with pytest.raises(ProtectionError, match="another form"):
            files.body_and_seed(Fake(seal.header(len(raw)) + raw))


def test_what_seal_refuses_is_a_protection_error() -> None:
    scheme = desk(RequestKind.SUM, 10, 16)[0]
    beyond = np.full(DEGREE, scheme.terms.modulus, WORD)
    with scheme.seal.files() as files, pytest.raises(ProtectionError, match="does not accept"):
        files.ciphertext(beyond, beyond)
