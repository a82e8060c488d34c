"""Every failure the product names.

One root, structured fields, and four facts about each class that the edges need: the process exit code, the gRPC status
it travels as, the advice a person gets, and `code`, the name under which it crosses the wire and stands in stores and
logs. A code is written out and never changes, whatever becomes of the class's name. The transport carries the code and
nothing of the message, so an error text never crosses from one party to the other, but for one: a coordinator tells an
operator what is wrong with that operator's request.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar


def one_line(text: str) -> str:
    """Whatever is not for showing escaped, line feeds too: nobody writes a second line, or moves a cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


class SecureFLError(Exception):
    """The root of everything raised on purpose. Its words are one line, whoever wrote what they quote."""

    code: ClassVar[str] = "SecureFL"
    exit_code: ClassVar[int] = 1
    status: ClassVar[str] = "INTERNAL"
    advice: ClassVar[str] = ""

    def __init__(self, message: str, *, advice: str | None = None) -> None:
        self.message = one_line(message)
        self.hint = one_line(self.advice if advice is None else advice)
        super().__init__(self.message)


class UsageError(SecureFLError):
    """The command line asks for something that does not exist or does not fit together."""

    code = "Usage"
    exit_code = 2
    status = "INVALID_ARGUMENT"


class DoubtError(SecureFLError):
    """`secure-fl doctor`: works now, but not for long or not well."""

    code = "Doubt"


# --- settings ---------------------------------------------------------------------------------------------


class SettingsError(SecureFLError):
    """A study or node file is missing, malformed or contradicts itself."""

    code = "Settings"
    exit_code = 3
    status = "INVALID_ARGUMENT"


class UnknownNameError(SettingsError):
    """A strategy, task, protection or key that does not exist."""

    code = "UnknownName"

    def __init__(self, kind: str, name: str, *, nearest: str | None, known: tuple[str, ...]) -> None:
        suggestion = f"; did you mean {nearest!r}?" if nearest else ""
        advice = f"known: {', '.join(known)}" if known else "leave it out: there is none"
        super().__init__(f"unknown {kind} {name!r}{suggestion}", advice=advice)
        self.kind = kind
        self.name = name
        self.nearest = nearest


class UnknownModelError(UnknownNameError, KeyError):
    """A run has no model of this name. Also a `KeyError`, since its models are a mapping."""

    code = "UnknownModel"

    def __str__(self) -> str:  # a KeyError's is in quotation marks
        return self.message


class TaskUnavailableError(SettingsError):
    """A task's code is not installed here, cannot be imported, or is no task."""

    code = "TaskUnavailable"
    status = "FAILED_PRECONDITION"


class TaskNotAllowedError(SettingsError):
    """A study of the coordinator's own file names code that the file does not list. Nothing of it is imported."""

    code = "TaskNotAllowed"
    status = "PERMISSION_DENIED"
    advice = "list it, word for word, in [coordinator] tasks of the coordinator's file, and restart the coordinator"


class LayoutMismatchError(SettingsError):
    """Two parties' models do not have the same blocks, shapes or dtypes."""

    code = "LayoutMismatch"
    status = "FAILED_PRECONDITION"
    advice = "install the same version of the task at every site and compare the study's [task] settings"


class ModelTooLargeError(SettingsError):
    """A model is larger than a party is willing to hold."""

    code = "ModelTooLarge"
    status = "FAILED_PRECONDITION"


class InitialModelError(SettingsError):
    """A study names another initial model than the one its seed makes here."""

    code = "InitialModel"
    status = "FAILED_PRECONDITION"
    advice = (
        "after a change of seed, task or strategy remove study.initial; otherwise another version of torch or of the "
        "task is installed here than where the study was written: use the same here as there"
    )


class DataError(SettingsError):
    """The local data cannot be read or do not fit the task."""

    code = "Data"
    status = "FAILED_PRECONDITION"


class NotPrivateError(SettingsError):
    """A task, its model or its data cannot be trained under differential privacy. Found before anything is trained."""

    code = "NotPrivate"
    status = "FAILED_PRECONDITION"
    advice = "replace batch normalisation by GroupNorm or LayerNorm, and give every layer one row of input per row"


# --- network ----------------------------------------------------------------------------------------------


class NetworkError(SecureFLError):
    """The other side cannot be reached, or the link broke."""

    code = "Network"
    exit_code = 4
    status = "UNAVAILABLE"
    advice = "check the address, the firewall and the proxy settings; the node retries by itself"


class PortInUseError(NetworkError):
    """The coordinator cannot listen where it was told to."""

    code = "PortInUse"
    advice = "stop the other process or choose another port (port 0 takes a free one)"


class VersionMismatchError(NetworkError):
    """The two parties share no protocol version."""

    code = "VersionMismatch"
    status = "FAILED_PRECONDITION"
    advice = "upgrade the older side; one version of skew is supported"


class MalformedMessageError(NetworkError):
    """A message breaks the wire contract: a bound, a missing field, a wrong digest."""

    code = "MalformedMessage"
    status = "INVALID_ARGUMENT"
    advice = "both sides should run a released version; this message was dropped"


class NotConnectedError(NetworkError):
    """A request outside a live session."""

    code = "NotConnected"
    status = "FAILED_PRECONDITION"
    advice = "the node reconnects and asks again"


class DuplicateSessionError(NetworkError):
    """Another process connected with the certificate of this session."""

    code = "DuplicateSession"
    status = "ABORTED"
    advice = "stop the other node; if there is none, somebody has this site's key: have the certificate revoked"


class TooManyRequestsError(NetworkError):
    """A peer wants more of the server at once than its share."""

    code = "TooManyRequests"
    status = "RESOURCE_EXHAUSTED"
    advice = "wait; if this is no mistake, raise [limits] in the coordinator's file"


class SubmissionsFullError(NetworkError):
    """Models that are being submitted to a coordinator take as much as they may together."""

    code = "SubmissionsFull"
    status = "RESOURCE_EXHAUSTED"
    advice = (
        "submit again in a few minutes: room comes back when a submission ends or stands still for a minute; whoever "
        "runs the coordinator may raise [limits] model_bytes in its file, of which twice as much may come at once"
    )


# --- identity ---------------------------------------------------------------------------------------------


class IdentityError(SecureFLError):
    """A certificate, key or signature is not acceptable."""

    code = "Identity"
    exit_code = 5
    status = "UNAUTHENTICATED"


class CertificateError(IdentityError):
    """A certificate is unknown, expired, revoked, of the wrong role, or does not belong to its key."""

    code = "Certificate"
    advice = "ask the consortium for a valid certificate (`secure-fl pki list` shows what was issued)"


class CoordinatorMismatchError(IdentityError):
    """The coordinator that answered is not the one in the node's file."""

    code = "CoordinatorMismatch"
    advice = "do not connect; compare the fingerprint with the consortium out of band"


class ForeignLedgerError(IdentityError):
    """A privacy ledger belongs to another site or another consortium."""

    code = "ForeignLedger"
    advice = (
        "put this site's own ledger.jsonl back, or correct the path of ca.pem and of the ledger; "
        "a ledger that is not this site's says nothing about what left it"
    )


class SignatureError(IdentityError):
    """A signature does not verify under the enrolled key."""

    code = "Signature"


class NotEnrolledError(IdentityError):
    """The peer is not in the roster of the study it speaks about."""

    code = "NotEnrolled"
    status = "PERMISSION_DENIED"


# --- rounds -----------------------------------------------------------------------------------------------


class RoundError(SecureFLError):
    """A round cannot go on as asked."""

    code = "Round"
    exit_code = 7
    status = "FAILED_PRECONDITION"


class LateMessageError(RoundError):
    """An answer to a phase that is over."""

    code = "LateMessage"
    status = "DEADLINE_EXCEEDED"
    advice = "the node waits for the next round"


class ConflictingUploadError(RoundError):
    """A second, different answer to a phase already answered."""

    code = "ConflictingUpload"
    status = "ALREADY_EXISTS"
    advice = "an answer is sent once; a retry must be byte-identical"


class CohortTooSmallError(RoundError):
    """Fewer contributors than the study or a site demands."""

    code = "CohortTooSmall"

    def __init__(self, *, have: int, need: int, what: str = "round") -> None:
        super().__init__(
            f"{what}: {have} contributors, at least {need} are needed",
            advice="wait for more sites to connect, or agree on a study with a smaller protection.min_cohort",
        )
        self.have = have
        self.need = need


class TooFewCirclesError(CohortTooSmallError):
    """Fewer circles were opened than it takes to outvote those of colluding sites: the round makes no step."""

    code = "TooFewCircles"
    advice = "wait for whole circles to be there, or agree on a study with more circles or without protection.robust"

    def __init__(self, *, have: int, need: int) -> None:
        super().__init__(have=have, need=need, what="robust mean")
        RoundError.__init__(self, f"robust mean: {have} circles were opened, at least {need} are needed")


class StaleTurnError(RoundError):
    """A circle took so long that its sum is too old to be merged."""

    code = "StaleTurn"
    advice = "the circle begins again from the newest model; raise rounds.staleness in a new study if it happens often"


class BlocksClosedError(RoundError):
    """A study ended, and some blocks of its model were never opened."""

    code = "BlocksClosed"
    advice = "a circle shares the blocks that all its sites hold: see the report for which sites hold fewer"


class StudyAbortedError(RoundError):
    """The study ended before its last round."""

    code = "StudyAborted"


class BudgetsUsedUpError(StudyAbortedError):
    """No circle can be complete again: sites have no privacy budget left for this study."""

    code = "BudgetsUsedUp"


class StudyStoppedError(StudyAbortedError):
    """The study lead ended the study."""

    code = "StudyStopped"


class UnknownStudyError(RoundError):
    """The coordinator has no such study."""

    code = "UnknownStudy"
    exit_code = 3  # A command names it, as it names a file that is not there.
    status = "NOT_FOUND"
    advice = "`secure-fl study status` lists the studies of a coordinator"


class NotOwnerError(RoundError):
    """An operator wants to end a study that another one submitted."""

    code = "NotOwner"
    status = "PERMISSION_DENIED"
    advice = "`secure-fl study status` names the operator who submitted a study"


class RefusedError(RoundError):
    """A site's own policy does not allow what was asked."""

    code = "Refused"
    status = "PERMISSION_DENIED"
    advice = "the site operator decides; see [policy] in the node file"


class NotApprovedError(RefusedError):
    """Nobody at the site has agreed to this study yet."""

    code = "NotApproved"
    advice = "read `secure-fl study show`, then approve its hash"


class CodeChangedError(RefusedError):
    """The task's code at the site is another than when the study was approved there."""

    code = "CodeChanged"
    advice = (
        "read what changed, then approve the study again: `secure-fl node approve`; after an approval of newer code "
        "than this node has loaded, restart the node"
    )


class BudgetExceededError(RefusedError):
    """Training once more would cost more privacy than the site allows for the data set. Nothing was computed."""

    code = "BudgetExceeded"
    advice = (
        "the data set can take no further part at this price; the site operator may raise [policy] epsilon in the node "
        "file, or the study lead may plan fewer rounds, fewer passes over the data or more noise (a smaller "
        "privacy.epsilon)"
    )

    def __init__(self, message: str, *, requested: float, allowed: float, remaining: float) -> None:
        super().__init__(message)
        self.requested = requested  # all three in the filter's own measure: Rényi divergence at its order
        self.allowed = allowed
        self.remaining = remaining


class NonFiniteUpdateError(RoundError):
    """Numbers that are NaN or infinite where only finite ones may be; nothing of it may leave the node."""

    code = "NonFiniteUpdate"
    advice = "lower strategy.learning_rate or check the local data"


class NotReadyError(RoundError):
    """A site cannot take part now: its data, its disk or its software do not work. It does not say which."""

    code = "NotReady"
    advice = "the site's own log says why; `secure-fl doctor NODE.toml --study STUDY.toml` there finds most of it"


class ProtectionError(RoundError):
    """A protection's message or state is not acceptable."""

    code = "Protection"


class OverflowInvariantError(ProtectionError):
    """A sum could leave the fixed-point ring. Refused before anything is sent, never wrapped."""

    code = "OverflowInvariant"
    exit_code = 3  # A command meets it in the settings of a study.
    advice = "lower protection.bits or the number of nodes"


class StepTooLargeError(ProtectionError):
    """A model is further from the one before it than a round can have moved it."""

    code = "StepTooLarge"
    advice = (
        "at a site: ask who runs the coordinator what happened to the model; at a coordinator: a site sent what no "
        "site should, or the strategy moves models further than its `largest_step` says"
    )


class ReleaseRefusedError(ProtectionError):
    """Opening this would show too much of one node to a coalition of others. Refused before any share is sent."""

    code = "ReleaseRefused"
    advice = "let more sites take part, or spread the weights more evenly over them"

    def __init__(
        self, message: str, *, node: int | str, rule: str, coalition: tuple[int | str, ...], advice: str | None = None
    ) -> None:
        super().__init__(message, advice=advice)
        self.node = node
        self.rule = rule
        self.coalition = coalition


class WrongSharesError(ProtectionError):
    """Sites gave or dealt wrong shares, and too few right ones are left to open the sums."""

    code = "WrongShares"
    advice = "whoever is named is left out of the next attempt; where nobody is, ask for a study with more sites"

    def __init__(self, message: str, *, blamed: Mapping[str, str]) -> None:
        super().__init__(message)
        self.blamed = dict(blamed)  # site → what it did; empty where nobody can be named


class RestartedError(RoundError):
    """The node restarted in mid-round; its secrets of that round are gone, as they should be."""

    code = "Restarted"


class TrainingError(RoundError):
    """Local training failed or its process died."""

    code = "Training"


class UnaccountedTrainingError(TrainingError):
    """A strategy would train on the data in a way that was not charged. Raised before it does."""

    code = "UnaccountedTraining"
    advice = "correct the strategy: `fit` and `charged_epochs` disagree, or a part without noise runs too early"


# --- storage ----------------------------------------------------------------------------------------------


class StorageError(SecureFLError):
    """A folder or database cannot be read or written."""

    code = "Storage"
    exit_code = 6
    status = "RESOURCE_EXHAUSTED"
    advice = "check free space and permissions of the folder, then start again: nothing committed is lost"


class SchemaError(StorageError):
    """A store or ledger was written by a newer version."""

    code = "Schema"
    status = "FAILED_PRECONDITION"
    advice = "upgrade secure-fl; the file was left untouched"


class LedgerError(StorageError):
    """A privacy ledger is not whole."""

    code = "Ledger"
    advice = "keep the file as it is and find out what changed it; the site sits out its running studies until then"


class MissingLedgerError(LedgerError):
    """There is no privacy ledger where there must be one."""

    code = "MissingLedger"
    advice = (
        "find out who removed it. If it is lost, keep what is left of it for the auditor and start with an empty state "
        "folder (docs/operations.md, backup and restore): what this site released before cannot be counted any more"
    )


class RewrittenLedgerError(LedgerError):
    """A privacy ledger is not the one that its site showed to others before."""

    code = "RewrittenLedger"
    advice = "ask the site for its ledger as it is now, and then for an explanation; the witness's file is the evidence"


class WitnessError(StorageError):
    """A file of witnessed ledger heads is damaged, or a line in it is not what the named site signed."""

    code = "Witness"
    advice = "keep the file for the auditor and move it away; the node begins a new one"


def by_code(code: str) -> type[SecureFLError]:
    """The class behind a wire code; the root for a code this version does not know."""
    pending: list[type[SecureFLError]] = [SecureFLError]
    while pending:
        cls = pending.pop()
        if cls.code == code:
            return cls
        pending.extend(cls.__subclasses__())
    return SecureFLError


def known_code(code: str) -> str:
    """`code` if it is one of ours, the root's otherwise: what another party wrote goes no further."""
    return by_code(code).code


def rebuild(code: str, message: str, *, advice: str | None = None) -> SecureFLError:
    """An error that another process reported. Subclasses differ in their arguments, so none of them is called."""
    cls = by_code(code)
    error = cls.__new__(cls)
    SecureFLError.__init__(error, message, advice=advice)
    return error
