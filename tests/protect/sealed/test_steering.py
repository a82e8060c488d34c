"""A coordinator that gives a recipient another combination than the one it signed for.

It cannot read what it sends, but adding to Σ w·y adds to what opens: whoever may choose that steers the recipient's
model and, sparing one site, later reads that site off everybody else's. Each attack succeeds where one check is away.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from flint import nmod_mat

from node.config import NodeFile
from node.policy import Policy
from secure_fl.errors import RefusedError
from secure_fl.messages import parse
from secure_fl.protect.contract import Message
from secure_fl.protect.primitives.field import MODULUS, Elements, read_elements
from secure_fl.protect.primitives.lagrange import lagrange
from secure_fl.protect.sealed import manifest, recipient
from secure_fl.protect.sealed.groups import SealedGroup
from secure_fl.protect.sealed.party import DIGESTED
from secure_fl.protect.sealed.ring import DEGREE, Product
from secure_fl.protect.sealed.shares import VECTOR_BYTES
from secure_fl.protect.uploads.statements import Rows, Uploads, open_purpose
from secure_fl.rpc.protect_sealed_pb2 import SealedDelivery
from secure_fl.simulation.workspace import Workspace, prepare
from secure_fl.study.settings import Study
from tests.protect.sealed.table import RECOMPUTES, SEALED, Table, combine_round

SHIFT = [700, -700, 350, 40, -41]  # of each block's mean, in the study's steps: body, then head
SIZE = len(SHIFT)


def opened(half: Any, message: Message) -> list[int] | None:
    """What a recipient has after a delivery."""
    assert half.answer("deliver", message) == Message()
    found = half.combination()
    return [*found["body"].total.tolist(), *found["head"].total.tolist()] if found else None


def moved(table: Table, honest: list[int], found: list[int] | None) -> bool:
    """Whether exactly the shift came on top: the weights of a row add up to 64."""
    half: Any = table.nodes["n0"]
    noise = half.party.terms.noise
    return found is not None and all(
        abs(now - before - 64 * by) <= 2 * noise for now, before, by in zip(found, honest, SHIFT, strict=True)
    )


@pytest.mark.parametrize("recompute", [True, False])
def test_a_forged_combination_is_refused_unless_recipients_believe_the_coordinator(recompute: bool) -> None:
    settings = (RECOMPUTES if recompute else SEALED).canonical_settings
    table = Table(combine_round(settings=settings)).until("deliver")
    message, half = table.asked["n0"], table.restart("n0")
    honest = opened(half, message)
    assert honest is not None
    elements = read_elements(message.bulk).astype(np.int64)
    weight = 64 if not recompute else next(iter(parse(SealedDelivery, message.body).rows[0].row.values()))
    elements[:SIZE] += (64 // weight or 1) * half.party.terms.scale * np.array(SHIFT) * weight
    forged = replace(message, bulk=(elements % MODULUS).astype("<u4").tobytes())
    found = opened(table.restart("n0"), forged)
    if recompute:
        assert found is None  # The site keeps its own model.
    else:
        assert moved(table, honest, found)


def bending(table: Table, holder: str, among: list[str], group: SealedGroup) -> Elements:
    """By how much `holder` has to change its share so that what opens moves by the shift."""
    half: Any = table.nodes["n0"]
    columns = []
    for place in range(SIZE):
        unit = np.zeros(DEGREE, np.uint32)
        unit[place] = 1
        columns.append(Product(unit).seal(np.zeros(SIZE, np.int32), seed=group.seed).astype(np.int64).tolist())
    system = nmod_mat(SIZE, SIZE, [columns[c][r] for r in range(SIZE) for c in range(SIZE)], MODULUS)
    target = nmod_mat(SIZE, 1, [-64 * by * half.party.terms.scale % MODULUS for by in SHIFT], MODULUS)
    key = [int(row[0]) for row in system.solve(target).tolist()]
    places = [table.cohort.index(name) for name in among]
    [weights] = lagrange(places, (0,), prime=MODULUS)
    inverse = pow(weights[among.index(holder)], -1, MODULUS)
    change = np.zeros(DEGREE, np.uint64)
    change[:SIZE] = [value * inverse % MODULUS for value in key]
    return change.astype(np.uint32)


@pytest.mark.parametrize("few", [True, False])
def test_a_holder_cannot_bend_what_opens_unless_recipients_are_content_with_t_shares(
    few: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """n3 works with the coordinator, which hands on just t answers, n3's among them."""
    if few:
        monkeypatch.setattr(recipient, "answers_to_open", lambda cohort, _colluders: cohort.threshold)
    table = Table(combine_round(settings=RECOMPUTES.canonical_settings)).until("deliver")
    message, half = table.asked["n0"], table.restart("n0")
    honest = opened(half, message)
    assert honest is not None
    said = parse(SealedDelivery, message.body)
    among = ["n0", "n1", "n2", "n3"]
    assert len(among) == table.cohort.threshold == manifest.answers_to_open(table.cohort, 1) - 1
    [group] = table.cohort.groups
    sealed = SealedGroup(group, 0, SIZE, SealedGroup.seed_of(table.cohort, group))
    change = bending(table, "n3", among, sealed)
    uploads = Uploads(table.cohort, said.commits, digests=DIGESTED)
    purpose = open_purpose(Rows(table.about, table.cohort, uploads, said.rows))
    evil: Any = table.nodes["n3"]
    for reply in said.replies:
        if reply.peer == "n3":
            plain = half.party.unseal_replies([reply], purpose=purpose)["n3"]
            assert len(plain) == VECTOR_BYTES
            bent = (read_elements(plain).astype(np.uint64) + change) % MODULUS
            reply.sealed = evil.party.seal_reply(bent.astype("<u4").tobytes(), "n0", purpose=purpose)
    everybody = replace(message, body=said.SerializeToString(deterministic=True))
    assert opened(table.restart("n0"), everybody) is None  # With all six answers the bent one is noticed anyway.
    del said.replies[len(among) :]
    found = opened(table.restart("n0"), replace(message, body=said.SerializeToString(deterministic=True)))
    if few:
        assert moved(table, honest, found)
    else:
        assert found is None


def test_a_study_without_recomputing_needs_each_sites_word(tmp_path: Path) -> None:
    settings = {
        "study": {"name": "trusting"},
        "strategy": {"name": "fedamp"},
        "protection": {"kind": "sealed", "recompute": False},
        "simulation": {"nodes": 5},
    }
    study = Study.parse(settings).completed()
    assert study.exceptions == {"unverified-combinations"}
    assert Study.parse({**settings, "protection": {"kind": "sealed"}}).exceptions == frozenset()
    workspace: Workspace = prepare(tmp_path / "run", study, policy={})
    workspace.point_nodes_at(1)
    file = NodeFile.read(workspace.node_file("site-01"))
    me = file.credential().certificate
    Policy(file, me).check_terms(workspace.study)  # One person plays every site, and wrote that.
    silent = file.model_copy(update={"policy": file.policy.model_copy(update={"exceptions": ()})})
    with pytest.raises(RefusedError, match="unverified-combinations"):
        Policy(silent, me).check_terms(workspace.study)
