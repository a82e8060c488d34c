"""Whom a study waits for, and why, in words for its lead.

A site says of its reasons one of a few words, none of which depends on a record. This is what they mean.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from secure_fl.errors import (
    BudgetExceededError,
    BudgetsUsedUpError,
    CertificateError,
    CodeChangedError,
    LateMessageError,
    NotApprovedError,
    NotReadyError,
    ProtectionError,
    RefusedError,
    ReleaseRefusedError,
    RestartedError,
    StorageError,
    StudyAbortedError,
    StudyStoppedError,
    TaskUnavailableError,
    WrongSharesError,
    known_code,
)
from secure_fl.rpc import operations_pb2 as pb

REVOKED = "Revoked"  # beside the codes of errors: of a certificate that the consortium took back

_SET_ASIDE = {
    REVOKED: "its certificate is revoked",
    CertificateError.code: "its certificate is not valid now; the site renews it",
    WrongSharesError.code: "left out: it sent wrong values, and the report says which",
    BudgetExceededError.code: "its privacy budget is used up for this study",
}
_REFUSES = {
    NotApprovedError.code: "not approved there yet (`secure-fl node approve`)",
    CodeChangedError.code: "the code of its task changed since it approved the study: it has to approve it again",
    NotReadyError.code: "its data, its disk or its software are not ready (the site's log says why); it tries again by "
    "itself",
    RefusedError.code: "its policy does not allow the study (the site's log says which rule)",
    TaskUnavailableError.code: "the task is not installed there, or no longer allowed (docs/tasks.md)",
    StorageError.code: "its disk cannot be used",
}
_SAT_OUT = {
    BudgetExceededError.code: "its privacy budget is used up",
    RefusedError.code: "its policy does not allow what was asked (the site's log says what)",
    ReleaseRefusedError.code: "this total beside earlier ones would show too much of one site (with the same sites as "
    "in earlier studies, or several more or fewer, it would not; the site's log says more)",
    ProtectionError.code: "a message of the coordinator or another site was not acceptable",
    LateMessageError.code: "it was too slow for the deadline",
    RestartedError.code: "it was restarted in the middle of the round",
    NotReadyError.code: "its data, its disk or its software are not ready (the site's log says why)",
}
_ENDED = {
    StudyAbortedError.code: "for too long too few sites could take part, or what was opened made no model; the "
    "coordinator's log says which",
    StudyStoppedError.code: "its lead stopped it",
    BudgetsUsedUpError.code: "sites have no privacy budget left for it",
}


def site_words(site: pb.SiteStatus) -> str:
    """Why a site does not take part now, or did not lately; empty where there is nothing to say."""
    if site.set_aside:
        return _SET_ASIDE.get(site.set_aside, f"set aside: {_plain(site.set_aside)}")
    if not site.connected:
        return "not connected"
    if not site.accepted:
        return (
            _REFUSES.get(site.refusal, f"refuses: {_plain(site.refusal)}") if site.refusal else "has not answered yet"
        )
    if site.sat_out:
        return f"sat out round {site.sat_out_round}: {_SAT_OUT.get(site.sat_out, _plain(site.sat_out))}"
    return ""


def ended_words(study: pb.StudyStatus) -> str:
    """Why a study was aborted; empty for any other."""
    return "" if study.state != "aborted" else _ENDED.get(study.reason, _plain(study.reason))


def waiting_words(study: pb.StudyStatus) -> tuple[str, ...]:
    """What a running study waits for; nothing where enough sites are ready."""
    return tuple(_waiting(study)) if study.state == "running" else ()


def _waiting(study: pb.StudyStatus) -> Iterator[str]:
    why = {site.name: site_words(site) or "not ready" for site in study.sites}
    if not study.circles:
        ready = [site.name for site in study.sites if site.connected and site.accepted and not site.set_aside]
        if len(ready) < study.needed:
            absent = [name for name in why if name not in ready]
            yield f"waiting: {len(ready)} of {study.needed} needed; {_each(absent, why)}"
        return
    waiting = [circle for circle in study.circles if circle.missing]
    for circle in waiting:
        present = len(circle.members) - len(circle.missing)
        of = f" in the circle of {', '.join(circle.members)}" if len(study.circles) > 1 else ""
        yield f"waiting: {present} of {len(circle.members)} needed{of}; {_each(circle.missing, why)}"
    if waiting and len(waiting) < len(study.circles):
        yield f"{len(study.circles) - len(waiting)} of {len(study.circles)} circles are complete, and go on"


def _each(names: Iterable[str], why: dict[str, str]) -> str:
    return "; ".join(f"{name}: {why.get(name, 'not ready')}" for name in names)


def _plain(code: str) -> str:
    """A code of ours; what another party made up goes no further."""
    return known_code(code)
