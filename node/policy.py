"""The site's own decision about a study and about every announcement. Nothing leaves before it is made."""

from __future__ import annotations

from node.config import NodeFile
from node.privacy import plan_here
from secure_fl.aggregation import RequestKind
from secure_fl.errors import NotApprovedError, RefusedError, TaskUnavailableError
from secure_fl.identity.certificates import Certificate
from secure_fl.rounds import RoundKind
from secure_fl.rpc import federation_pb2 as pb
from secure_fl.settings import section_name
from secure_fl.study.resolved import ResolvedStudy
from secure_fl.study.settings import Study
from secure_fl.transport.wire import round_kind

_OPENNESS = ("none", "aggregate", "per-node")


class Policy:
    """Checks against the node's file."""

    def __init__(self, file: NodeFile, me: Certificate) -> None:
        self._file = file
        self._me = me

    def check_study(self, study_id: str, study: Study, approvals: frozenset[str]) -> None:
        """Raise `RefusedError` (or `SettingsError`) unless this site can and will take part in exactly this study."""
        if study.id != study_id:
            raise RefusedError("the offered study is not the one its id names")
        # First: of a site where nobody has agreed, nobody learns what its file allows, or which tasks it has.
        self.check_approval(study_id, approvals)
        try:
            self.check_task(study)
        except RefusedError as error:  # The study lead may be told which of the two it is.
            raise TaskUnavailableError(error.message, advice=error.hint) from None
        self.check_terms(study)

    def check_approval(self, study_id: str, approvals: frozenset[str]) -> None:
        """Raise `NotApprovedError` unless the site operator agreed to this very study."""
        policy = self._file.policy
        by_hand = approvals if policy.approve == "ask" else frozenset()
        if study_id not in policy.approved and study_id not in by_hand:
            raise NotApprovedError(f"study {study_id} is not approved here")

    def check_terms(self, study: Study) -> None:
        """Raise `RefusedError` (or `SettingsError`) unless the site could agree to a study with these settings."""
        if study.study.roster.get(self._me.name) != self._me.fingerprint:
            raise RefusedError("this site's key is not in the roster")
        require_terms(self._file, study)

    def check_task(self, study: Study) -> None:
        """Raise `RefusedError` unless the site itself installed the task, or wrote it into its file."""
        require_task(self._file, study)

    def check_upload(self, parameters: int) -> None:
        """Raise `RefusedError` if more of a model would leave in one round than the site allows."""
        most = self._file.policy.upload_parameters
        if most is not None and parameters > most:
            raise RefusedError(f"{parameters} parameters would leave, more than [policy] upload_parameters allows")

    def check_announcement(self, resolved: ResolvedStudy, announcement: pb.PhaseAnnouncement) -> None:
        """Raise `RefusedError` unless the announced round is one of the approved study."""
        study = resolved.study
        invited = set(announcement.invited)
        rounds = study.study.rounds
        # A model is measured once, when it is finished. Whoever could have any model measured in any round, with one
        # site more and one less, would learn that site's accuracy and loss on a model of its choosing.
        kind, division = round_kind(announcement.kind), resolved.division
        if kind is RoundKind.DECLARE:
            # Once: a site that knows its circle for this study is never put into another.
            theirs = announcement.round == 0 and not division.settled
        elif kind is RoundKind.EVALUATE:
            theirs = announcement.round == rounds + 1
        else:
            theirs = 1 <= announcement.round <= rounds
        if not theirs:
            raise RefusedError("the round is not one of the study's")
        circle = resolved.circle_of(self._me.name, kind)
        if kind is not RoundKind.DECLARE and announcement.declared.sha256 != division.digest:
            raise RefusedError("the round's circles were formed from another list than this site knows")
        if circle:
            # In a circle another attempt shows nothing new: the same sites, the same model, the same integers.
            if announcement.attempt < 1 or tuple(sorted(announcement.invited)) != circle:
                raise RefusedError("the round invites other sites than this site's circle")
        elif not 1 <= announcement.attempt <= study.rounds.attempts:
            raise RefusedError("the attempt is beyond what the study allows")
        if not invited <= study.study.roster.keys() or self._me.name not in invited:
            raise RefusedError("the round invites sites outside the roster, or not this one")
        if len(invited) < max(self._file.policy.min_cohort, study.min_cohort(RequestKind.SUM)):
            raise RefusedError("the round's cohort is too small")
        # What comes beside a model may hold what every site uploaded, for this one to add up.
        most = self._file.policy.model_bytes
        if announcement.model.object.size > most or announcement.bulk.size > most * len(invited):
            raise RefusedError("the model is larger than [policy] model_bytes")
        _require_blocks(announcement, may_ask=resolved.strategy.asks_circles and kind is RoundKind.TRAIN)
        if announcement.payload.protection != resolved.protection_in(kind).name:
            raise RefusedError("the round uses another protection than the study")


def require_terms(file: NodeFile, study: Study) -> None:
    """Raise `RefusedError` (or `SettingsError`) unless a study fits a site's file, whoever is in the roster."""
    policy = file.policy
    if not study.study.initial:
        raise RefusedError("the study does not say which model it starts from")
    if study.protection.kind not in policy.protections:
        raise RefusedError(
            f"protection {study.protection.kind!r} is not allowed by [policy] protections",
            advice="`secure-fl study show` says who could read what; add it only if this site agrees",
        )
    if policy.strategies and study.strategy.name not in policy.strategies:
        raise RefusedError(f"strategy {study.strategy.name!r} is not allowed by [policy] strategies")
    require_task(file, study)
    if unheard := study.exceptions - set(policy.exceptions):
        raise RefusedError(
            f"{', '.join(sorted(unheard))}: not among [policy] exceptions",
            advice="`secure-fl study show` says what this site would give up; list it only if it agrees",
        )
    dataset = study.task.dataset_id
    if dataset not in file.datasets:
        raise RefusedError(f"there is no {section_name('datasets', dataset)} here")
    if policy.datasets and dataset not in policy.datasets:
        raise RefusedError(f"dataset {dataset!r} is not allowed by [policy] datasets")
    if policy.epsilon is not None and study.privacy.mode == "none":
        raise RefusedError("the study has no differential privacy, and [policy] epsilon limits what may be spent")
    plan_here(file, study)
    if study.protection.colluders < policy.colluders:
        raise RefusedError(f"the study withstands fewer than {policy.colluders} colluding sites")
    if len(study.study.roster) < policy.min_cohort or study.min_cohort(RequestKind.SUM) < policy.min_cohort:
        raise RefusedError(f"the study opens cohorts smaller than {policy.min_cohort}")
    if _OPENNESS.index(study.metrics.share) > _OPENNESS.index(policy.metrics):
        raise RefusedError(f"metrics.share {study.metrics.share!r} is more than [policy] metrics allows")


def require_task(file: NodeFile, study: Study) -> None:
    """Raise `RefusedError` unless this site named the study's task. Nothing is imported to find out."""
    name = study.task.name
    if not file.allows_task(name):
        module, _, attribute = name.partition(":")
        listed = f'list the file that has it: [policy] tasks = ["{module}.py:{attribute}"]' if attribute else ""
        raise RefusedError(
            f"task {name!r} is not installed at this site, and not allowed by [policy] tasks",
            advice=f"install its package here{', or ' + listed if listed else ''} (docs/tasks.md)",
        )


def _require_blocks(announcement: pb.PhaseAnnouncement, *, may_ask: bool) -> None:
    asked = list(announcement.asked)
    if asked and not may_ask:
        raise RefusedError("the round asks for some of the blocks, and the study's strategy never does")
    if asked != [block.name for block in announcement.model.blocks if block.name in set(asked)]:
        raise RefusedError("the round asks for blocks that the model does not have, or for some of them twice")
