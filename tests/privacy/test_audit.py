"""An audit recomputes everything from the entries alone, and names what does not hold."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from secure_fl.identity.authority import Authority
from secure_fl.identity.credential import Credential
from secure_fl.identity.ledger_head import LedgerHead
from secure_fl.privacy.accounting import epsilon_pld
from secure_fl.privacy.audit import Audit, Policy, examine
from secure_fl.privacy.audit_faults import StudyTerms
from secure_fl.privacy.decisions import approval, refusal, this_user
from secure_fl.privacy.events import NoisySteps
from secure_fl.privacy.filter import BudgetFilter
from secure_fl.privacy.ledger import Ledger, read_site_ledger
from tests.support.ledgers import HEART, LUNG, Story, noisy, note_of


@pytest.fixture
def story(tmp_path: Path, consortium: Authority, north: Credential) -> Story:
    return Story(tmp_path / "ledger.jsonl", consortium, north)


def audit(story: Story, **more: Any) -> Audit:
    return examine(read_site_ledger(story.path, authority=story.authority.ca_pem, site="north"), **more)


def steps(count: int) -> tuple[NoisySteps, ...]:
    return (NoisySteps(sampling=1 / 9, noise=3.08, steps=count),)


def test_epsilon_is_recomputed_after_every_release(story: Story) -> None:
    story.rounds(HEART, (1, 2), privacy=noisy())
    story.cancel(story.plan(HEART, 3, privacy=noisy()))
    story.rounds(LUNG, (1,), privacy=noisy())
    found = audit(story)
    (ward,) = found.datasets
    assert found.ok
    assert [use.epsilon for use in ward.uses] == [epsilon_pld(steps(36 * n), delta=1e-5) for n in (1, 2, 3)]
    assert ward.epsilon == ward.uses[-1].epsilon
    assert ward.events == steps(108)
    assert (ward.sent, ward.bytes, ward.policy) == (3, 6144, Policy(epsilon=3.0, delta=1e-5, order=8))
    assert ward.sentence.startswith(f"If the site ran the stated code, ε ≤ {ward.epsilon:.4g} at δ = 1e-05")


def test_a_simulation_has_no_bound_and_says_what_secret_noise_would_cost(story: Story) -> None:
    story.rounds(HEART, (1, 2), privacy=noisy(randomness="seeded"))
    (ward,) = audit(story).datasets
    assert ward.epsilon is None
    assert ward.planning == epsilon_pld(steps(72), delta=1e-5)
    assert "for planning only" in ward.sentence


def test_the_reference_site_comes_to_its_epsilon(story: Story) -> None:
    # A digits site: q = 1/9, 360 steps, σ = 3.08, δ = 1e-5 is about ε = 3.
    story.rounds(HEART, range(1, 11), privacy=noisy(policy=None))
    (ward,) = audit(story).datasets
    assert ward.epsilon == pytest.approx(3.0, rel=0.01)
    assert ward.policy is None


def test_an_open_plan_counts_and_is_said(story: Story) -> None:
    story.plan(HEART, 1, privacy=noisy())
    found = audit(story)
    (ward,) = found.datasets
    assert found.ok
    assert ward.epsilon == epsilon_pld(steps(36), delta=1e-5)
    assert (ward.sent, ward.bytes) == (0, 0)
    assert found.notes == ("1 planned round was never closed (the node stopped in between), and counts as used",)


def test_a_release_without_noise_makes_the_total_unbounded_and_never_zero(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    story.rounds(LUNG, (1,))
    (ward,) = audit(story).datasets
    assert [use.epsilon is None for use in ward.uses] == [False, True]
    assert ward.epsilon is None
    assert ward.sentence == (
        "Nothing limits how much the results can reveal about single records (a release without differential privacy)."
    )


def test_what_was_only_planned_without_noise_is_no_release(story: Story) -> None:
    story.cancel(story.plan(HEART, 1))
    story.cancel(story.plan(HEART, 2))
    (ward,) = audit(story).datasets
    assert (ward.epsilon, ward.sentence) == (0.0, "Nothing that was computed from it left the site.")


def test_beyond_so_many_releases_the_next_computed_value_stands(story: Story) -> None:
    story.rounds(HEART, range(1, 61), privacy=noisy(steps=1, policy=None))
    (ward,) = audit(story).datasets
    values = [use.epsilon or 0.0 for use in ward.uses]
    assert values == sorted(values)
    assert len(set(values)) <= 24
    # Of the releases under one value the last costs most.
    for value, number in dict(zip(values, range(1, 61), strict=True)).items():
        assert value >= epsilon_pld(steps(number), delta=1e-5) - 1e-12
    assert values[-1] == epsilon_pld(steps(60), delta=1e-5)


# --- the site's limit ---------------------------------------------------------------------------------------


def fits(policy: float) -> int:
    budget = BudgetFilter(epsilon=policy, delta=1e-5, order=8)
    left = budget.rounds_left((), steps(36))
    assert left is not None
    return left


def test_the_first_round_beyond_the_limit_is_named(story: Story) -> None:
    allowed = fits(3.0)
    story.rounds(HEART, range(1, allowed + 1), privacy=noisy())
    assert audit(story).ok
    story.plan(HEART, allowed + 1, privacy=noisy())
    (fault,) = audit(story).faults
    assert fault.entry == 2 * allowed + 1
    assert "beyond the limit" in fault.what


def test_what_was_taken_back_before_leaves_room(story: Story) -> None:
    allowed = fits(3.0)
    for number in range(1, 4):
        story.cancel(story.plan(HEART, number, privacy=noisy()))
    story.rounds(HEART, range(4, allowed + 4), privacy=noisy())
    assert audit(story).ok


def test_what_was_taken_back_too_late_was_beyond_the_limit_at_the_time(story: Story) -> None:
    story.rounds(HEART, range(1, fits(3.0) + 1), privacy=noisy())
    story.cancel(story.plan(LUNG, 1, privacy=noisy()))
    assert not audit(story).ok


def test_after_a_release_without_noise_no_limit_is_kept(story: Story) -> None:
    story.rounds(LUNG, (1,))
    assert audit(story).ok
    story.plan(HEART, 1, privacy=noisy())
    assert [fault.entry for fault in audit(story).faults] == [3]


def test_a_limit_that_is_none_holds_nothing(story: Story) -> None:
    story.plan(HEART, 1, privacy=noisy(policy={"epsilon": -1.0, "delta": 1e-5}))
    assert [fault.entry for fault in audit(story).faults] == [1]


def test_a_changed_limit_or_content_is_remarked_upon_and_resets_nothing(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    story.rounds(HEART, (2,), privacy=noisy(policy={"epsilon": 8.0, "delta": 1e-5}, fingerprint="99" * 32))
    found = audit(story)
    assert found.datasets[0].epsilon == epsilon_pld(steps(72), delta=1e-5)
    assert any("changed its limit" in note for note in found.notes)
    assert any("its content changed" in note for note in found.notes)


# --- faults ---------------------------------------------------------------------------------------------------


def test_the_first_bad_entry_is_named_and_what_came_before_is_shown(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    story.ledger.append("sent", {"study": LUNG, "round": 1, "attempt": 1, "dataset": "ward-7", "release": {}})
    story.rounds(HEART, (2,), privacy=noisy())
    found = audit(story)
    assert [(fault.entry, fault.what) for fault in found.faults] == [(3, "(sent) closes what was never planned")]
    assert len(found.uses) == 1


def test_a_witness_convicts_and_two_witnesses_tell_two_stories(story: Story, north: Credential) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    note = story.note()
    assert (audit(story, notes=[note]).ok, audit(story, notes=[note]).witnessed) == (True, 1)
    forked = note_of(north, LedgerHead(site="north", length=3, head="ab" * 32))
    longer = note_of(north, LedgerHead(site="north", length=9, head="ab" * 32))
    faults = audit(story, notes=[note, forked]).faults
    assert {fault.error for fault in faults} == {"RewrittenLedger"}
    assert any("two stories" in fault.what for fault in faults)
    assert any("rewritten at or before line 3" in fault.what for fault in faults)
    (fault,) = audit(story, notes=[longer]).faults
    assert "ends after 3 lines" in fault.what


def test_a_cut_has_one_cause_and_one_line_for_all_that_follows_from_it(story: Story) -> None:
    notes = []
    for number in range(1, 6):
        story.rounds(HEART, (number,), privacy=noisy())
        notes.append(story.note(round=number))
    entries = read_site_ledger(story.path, authority=story.authority.ca_pem)
    assert examine(entries, notes=notes).ok
    cause, follows = examine(entries[:3], notes=notes).faults
    assert (cause.entry, follows.entry) == (3, 3)
    assert cause.what.startswith("the ledger ends after 3 lines: it was cut, or is an old copy; ")
    assert "signed that line 11 of its ledger" in cause.what  # the note that shows most
    assert follows.what == (
        "because of that, 3 more notes of other sites do not fit, and 4 attempts that the site took part in are not "
        "planned in it"
    )


def test_what_does_not_follow_from_a_cut_is_a_fault_of_its_own(story: Story, north: Credential) -> None:
    story.rounds(HEART, (1, 2), privacy=noisy())
    entries = read_site_ledger(story.path, authority=story.authority.ca_pem)
    early = note_of(north, LedgerHead(site="north", length=2, head=entries[1].digest), study=LUNG)  # never planned
    found = examine(entries[:3], notes=[early, story.note(round=2)]).faults
    assert [fault.entry for fault in found] == [1, 3, 3]
    assert found[0].what.startswith("the site took part and had not planned it")
    assert found[2].what == "because of that, 1 attempt that the site took part in is not planned in it"


def terms(**changes: Any) -> StudyTerms:
    privacy = {"mode": "dp-sgd", "unit": "record", "clip": 1.0, "delta": 1e-5, "epsilon": 3.0}
    return StudyTerms(id=HEART, name="heart", rationale="few patients", privacy={**privacy, **changes})


def test_a_study_s_own_text_is_held_against_the_ledger(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    found = audit(story, studies=[terms()])
    assert found.ok
    assert found.study_name(HEART) == "heart"
    (fault,) = audit(story, studies=[terms(clip=0.5)]).faults
    assert (fault.entry, fault.what) == (1, "is under another clip than its study says")
    assert audit(story, studies=[StudyTerms(id=LUNG, name="lung")]).notes == (
        f"study 'lung' ({LUNG[:12]}) is not in this ledger",
    )


def test_a_study_under_noise_releases_nothing_without(story: Story) -> None:
    story.rounds(HEART, (1,))
    assert [fault.what for fault in audit(story, studies=[terms()]).faults] == [
        "leaves without the noise that its study asks for"
    ]
    assert audit(story, studies=[terms(mode="none")]).ok


# --- around it ------------------------------------------------------------------------------------------------


def test_decisions_and_names_are_found(story: Story) -> None:
    story.ledger.append(
        "approved",
        approval(study_id=HEART, name="heart", by=this_user(), dataset="ward-7", epsilon=3.0, code="cd" * 32),
    )
    story.ledger.append("refused", refusal(study_id=LUNG, round=2, reason="BudgetExceeded"))
    story.rounds(HEART, (1,), privacy=noisy())
    found = audit(story)
    assert found.study_name(HEART) == "heart"
    assert found.study_name(LUNG) == LUNG[:12]
    assert found.approvals[0].facts["by"] == this_user() != ""
    assert [entry.facts["reason"] for entry in found.refusals] == ["BudgetExceeded"]


def test_a_renewed_certificate_is_listed_and_one_that_ran_out_remarked_upon(
    tmp_path: Path, consortium: Authority, north: Credential
) -> None:
    short = consortium.issue("node", "north", days=1, renew=True)
    path, clock = tmp_path / "ledger.jsonl", [short.certificate.not_before + timedelta(hours=1)]

    def opened(site: Credential) -> Ledger:
        return Ledger(
            path,
            certificate=site.certificate,
            key=site.signing_key,
            authority=consortium.ca_pem,
            now=lambda: clock[0],
        )

    ledger = opened(short)
    clock[0] += timedelta(days=2)
    ledger.append("refused", refusal(study_id=HEART, round=1, reason="Refused"))
    opened(north)
    found = examine(read_site_ledger(path, authority=consortium.ca_pem))
    assert [certificate.fingerprint for certificate in found.certificates] == [
        short.certificate.fingerprint,
        north.certificate.fingerprint,
    ]
    assert found.notes == ("written after the site's certificate of the time had expired: 1 of 3 entries",)
    assert (found.datasets, found.uses, found.ok) == ((), (), True)


def test_records_and_groups_do_not_add_up_to_one_epsilon(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    story.rounds(LUNG, (1, 2), privacy=noisy(unit="group", group_rows=4))
    (ward,) = audit(story).datasets
    assert [use.epsilon is None for use in ward.uses] == [False, True, True]
    assert "by group in some studies and by record in others" in ward.sentence


def test_a_group_is_named_where_all_releases_protect_groups(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy(unit="group", group_rows=4))
    (ward,) = audit(story).datasets
    assert ward.sentence.endswith("for each group of records.")


def test_a_cost_that_is_not_the_study_s_is_found(story: Story) -> None:
    """A site that wrote down more noise, or fewer steps, than its study plans would look cheap."""
    story.rounds(HEART, (1, 2), privacy=noisy())
    planned = StudyTerms(id=HEART, name="heart", privacy={"mode": "dp-sgd"}, cost=lambda units, number: steps(36))
    assert audit(story, studies=[planned]).ok
    dearer = StudyTerms(id=HEART, name="heart", privacy={"mode": "dp-sgd"}, cost=lambda units, number: steps(72))
    (fault, *_) = audit(story, studies=[dearer]).faults
    assert "than its study's plan" in fault.what


def test_what_a_study_came_to_is_exact_however_long_the_ledger_is(story: Story) -> None:
    """Of many uses only some are computed; the others stand under the next, and say so."""
    story.rounds(HEART, range(1, 4), privacy=noisy(policy=None))
    story.rounds(LUNG, range(1, 61), privacy=noisy(policy=None))
    (ward,) = audit(story).datasets
    assert ward.uses[2].exact
    assert ward.uses[2].epsilon == epsilon_pld(steps(108), delta=1e-5)
    rough = [use for use in ward.uses if not use.exact]
    assert rough
    exact = {place: use.epsilon for place, use in enumerate(ward.uses) if use.exact}
    for place, use in enumerate(ward.uses):
        assert use.epsilon == exact[min(at for at in exact if at >= place)]


def test_what_another_site_is_caught_at_is_no_fault_of_this_ledger(story: Story, south: Credential) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    lies = [note_of(south, LedgerHead(site="south", length=4, head=mark * 32)) for mark in ("ab", "cd")]
    assert audit(story, notes=lies).ok


def test_one_content_under_two_names_is_said(story: Story) -> None:
    story.rounds(HEART, (1,), privacy=noisy())
    story.rounds(LUNG, (1,), privacy=noisy(), dataset="ward-8")
    assert any("have the same content" in remark for remark in audit(story).notes)
