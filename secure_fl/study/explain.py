"""`study show`: what a study means for a site, in plain language."""

from __future__ import annotations

from dataclasses import dataclass

from secure_fl import tasks
from secure_fl.aggregation import RequestKind
from secure_fl.counting import counted
from secure_fl.encoding.weights import WEIGHT_UNITS, weight_floor
from secure_fl.errors import SettingsError
from secure_fl.protect.past import CHANGING_COHORTS, ROUND_BY_ROUND
from secure_fl.settings import section_name
from secure_fl.strategies.base import Strategy
from secure_fl.study.settings import PLAIN_METRICS, Study
from secure_fl.tasks.code_digest import task_code
from secure_fl.tasks.files import shown_sha256
from secure_fl.tasks.model_blocks import initial_blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """One heading and its sentences."""

    heading: str
    sentences: tuple[str, ...]


def _task_file(name: str) -> tuple[str, ...]:
    digest = shown_sha256(name)
    told = (
        f"The task is a single file, here with sha256:{digest}; `secure-fl node approve` shows that of the site's own."
    )
    return (told,) if digest else ()


def explain(study: Study, *, units: int | None = None) -> tuple[Explanation, ...]:
    """The study in sentences: what it does, what leaves, who learns what, what is not covered.

    With `units`, what it costs at a site that declares so many.
    """
    task = tasks.create(study.task.name, study.task.settings)
    layout, _ = initial_blocks(task, study.study.seed)
    strategy, protection = study.make_strategy(), study.make_protection()
    request = strategy.request_for(task, layout)
    shared = layout.select(request.blocks)
    minimum = study.min_cohort(request.kind)
    return (
        Explanation(
            heading="What it does",
            sentences=(
                f"Study {study.study.name!r} trains the task {study.task.name!r} with the strategy "
                f"{strategy.name!r} for {counted(study.study.rounds, 'round')} among {_sites(study)}.",
                f"It runs on the data set each site calls {study.task.dataset_id!r}; the study never names a path.",
                f"Its hash, which a site approves, is {study.id}.",
                _training(strategy),
                *_buffered(study),
                *_start(study),
                f"The task's code here is {task_code(type(task), type(strategy)).text}. With the study a site approves "
                "the code it has itself, and is asked again when that changes.",
                *_task_file(study.task.name),
            ),
        ),
        Explanation(
            heading="What leaves a site",
            sentences=(
                *strategy.explain(),
                f"Per round: {shared.size:,} of {layout.size:,} parameters, in the blocks "
                f"{', '.join(shared.names) or '(none)'}.",
                *_encoding(study, request.kind, blocks=bool(shared.names)),
                _metrics(study, request.kind, hidden=not protection.coordinator_sees_updates),
                *_own_metrics(study, hidden=not protection.coordinator_sees_updates),
            ),
        ),
        Explanation(
            heading=f"Who learns what (protection {protection.name!r})",
            sentences=(
                *_protected(study, protection.explain(request.kind)),
                *_circles(study, request.kind),
                f"A block (a part of the model) is updated only if at least {minimum} sites sent it. Otherwise it "
                "stays as it was.",
                *_dropouts(study, request.kind),
                *_exceptions(study),
                "The coordinator always sees who takes part, when, and how much is sent.",
            ),
        ),
        Explanation(
            heading="Differential privacy",
            sentences=_privacy(study, strategy, units),
        ),
    )


def _training(strategy: Strategy) -> str:
    settings = strategy.settings
    return (
        f"In a round each site trains for {settings.epochs} epoch{'s' * (settings.epochs > 1)} in batches of "
        f"{settings.batch_size} with {settings.optimizer}, learning rate {settings.learning_rate:g}."
    )


def _buffered(study: Study) -> tuple[str, ...]:
    if not study.rounds.is_buffered:
        return ()
    if study.rounds.by_sites:
        return _by_sites(study)
    return (
        "Circles of sites do not wait for each other: each trains from the newest model when it is free, takes at most "
        f"{counted(study.study.rounds, 'turn')}, and is merged when its last site has uploaded. The study ends after "
        f"{counted(study.versions, 'version')} of the model.",
    )


def _by_sites(study: Study) -> tuple[str, ...]:
    rounds, least = study.rounds, study.min_cohort(RequestKind.SUM)
    floor = weight_floor(least, study.protection.colluders)
    waits = "" if rounds.flush_after is None else f", or at least {least} for {rounds.flush_after:g} seconds"
    return (
        f"Sites do not wait for each other: a new version of the model is made when {max(rounds.buffer, least)} of "
        f"them are done{waits}, {study.study.rounds} times. Whoever is still training goes on and joins a later "
        f"version, once, unless its work is then more than {counted(rounds.staleness, 'version')} old.",
        "Old work counts less, but so that no other site stands out in the sum: at least "
        f"{floor / WEIGHT_UNITS:.2f} of fresh work.",
        "The coordinator and the other sites see which version each site trained from, and so how fast it is. Sites "
        "open nothing in which two of them trained from different models under one version number.",
    )


_UNITS = {"record": "record (a row of its data)", "group": "group (all rows of one patient or machine)"}
_EXAMPLES = (100, 1000, 10_000)  # units of a site, to show how much noise each would add


def _privacy(study: Study, strategy: Strategy, units: int | None) -> tuple[str, ...]:
    if study.privacy.mode == "none":
        return (
            "None: nothing limits how much the results can reveal about single records; a shared model may remember "
            "training data.",
        )
    notes = strategy.private_notes
    if units is not None:
        plan = study.privacy_plan(units=units)
        return (*notes, *(plan.explain() if plan is not None else ()), *_not_covered(study))
    noise = "; ".join(_noise(study, count) for count in _EXAMPLES)
    return (
        f"Every site adds noise while it trains. So its part in this study costs at most epsilon "
        f"{study.privacy.epsilon:g} with delta {study.privacy.delta:g} for each {_UNITS[study.privacy.unit]}. Each "
        "site enforces that itself, and its ledger proves what it spent.",
        *notes,
        f"How much noise that takes depends on how many {study.privacy.unit}s a site declares "
        f"({section_name('datasets', study.task.dataset_id)} units). Compared with the largest effect that "
        f"one {study.privacy.unit} can have, the noise is {noise}.",
        "`secure-fl study show --units N` says what that means for a site with N.",
        *_not_covered(study),
    )


def _noise(study: Study, units: int) -> str:
    try:
        plan = study.privacy_plan(units=units)
    except SettingsError as error:
        return f"not possible at a site with {units:,} ({error.message})"
    return "" if plan is None else f"{plan.noise:.3g} times as large at a site with {units:,}"


def _not_covered(study: Study) -> tuple[str, ...]:
    if PLAIN_METRICS not in study.exceptions:
        return ()
    return (
        f"EXCEPTION ({PLAIN_METRICS}): measurements (accuracy, loss{_named(study)}) leave without noise, and no "
        "epsilon covers them. "
        'A site has to agree: [policy] exceptions. With metrics.share = "none" there is nothing to agree to.',
    )


def _protected(study: Study, sentences: tuple[str, ...]) -> tuple[str, ...]:
    said_below = CHANGING_COHORTS in study.exceptions
    return tuple(sentence for sentence in sentences if not (said_below and sentence == ROUND_BY_ROUND))


_SHOWN_CIRCLES = 20


_OTHER_CIRCLES = (
    "A site that took part in other circles before, in any study, refuses the new ones: list the circles it knows in "
    "protection.circles, which it is then never taken out of."
)


_NO_SITES = (
    "No site is named yet, so there are no circles to show here: they follow from the roster, which is part of what "
    "sites approve."
)


def _circles(study: Study, kind: RequestKind) -> tuple[str, ...]:
    circles = study.circles() if kind is RequestKind.SUM else ()
    if not circles:
        named = bool(study.study.roster) or kind is not RequestKind.SUM or study.protection.recovery
        return () if named or study.make_protection().coordinator_sees_updates else (_NO_SITES,)
    if study.protection.circles == "speed" and study.declares:
        return (
            "Before the first round each site trains, and says, signed and once, how long that took, to the next "
            f"power of two. From that follow {len(circles)} circles for the whole study: slow sites wait for slow "
            f"sites. Updates are only ever opened as the total of a whole circle of at least {min(map(len, circles))} "
            "sites.",
            _OTHER_CIRCLES,
        )
    if study.declares:
        return (
            f"Before the first round each site trains, and says, signed and once, which blocks it shares. From that "
            f"follow {len(circles)} circles for the whole study, of sites that share about equally much; a circle "
            f"shares what all its members share. Updates are only ever opened as the total of a whole circle of at "
            f"least {min(map(len, circles))} sites.",
            _OTHER_CIRCLES,
        )
    listed = "; ".join(", ".join(circle) for circle in circles[:_SHOWN_CIRCLES])
    more = f"; and {len(circles) - _SHOWN_CIRCLES} more" if len(circles) > _SHOWN_CIRCLES else ""
    fewest = min(map(len, circles))
    return (
        f"The roster is divided into {len(circles)} circle{'s' * (len(circles) > 1)}, for the whole study: "
        f"{listed}{more}. Updates are only ever opened as the total of a whole circle of at least {fewest} sites.",
    )


def _exceptions(study: Study) -> tuple[str, ...]:
    if CHANGING_COHORTS not in study.exceptions:
        return ()
    by_sites = (
        "This also covers that sites train from different versions of the model. A coordinator that publishes a "
        "version from which sites learn nothing sees, in that sum, the work of those who trained from another version "
        "nearly alone.",
    )
    return (
        f"EXCEPTION ({CHANGING_COHORTS}): if a site joins or leaves between two rounds, the difference of the two "
        "results tells something about that site. A cheating coordinator can cause this on purpose: it leaves a site "
        "out of the next round and so learns roughly what that site sent; nearly all of it, and its measurements "
        "exactly, if it leaves the model as it was. It never opens one round twice: what a site computed for a round "
        "leaves it once. A site has to agree: [policy] exceptions.",
        *(by_sites if study.rounds.by_sites else ()),
    )


def _dropouts(study: Study, kind: RequestKind) -> tuple[str, ...]:
    sites = len(study.study.roster)
    if not sites:
        return ()
    if study.circles() and kind is RequestKind.SUM:
        return (
            "A circle that misses a site waits for it, and the other circles go on; what comes late still counts while "
            "the round is open.",
        )
    spare = study.spare(kind, sites)
    return (
        f"A round survives the loss of {spare} of {sites} sites."
        if spare
        else f"A round needs all {sites} sites to its end: none may drop out.",
    )


def _metrics(study: Study, kind: RequestKind, *, hidden: bool) -> str:
    if study.metrics.share == "none":
        return "No measurement (accuracy, loss) leaves the site, so nobody else learns how well the model does there."
    if study.metrics.share == "per-node":
        return "The coordinator sees each site's own measurements (accuracy, loss) and its number of samples."
    sums = "are added up with those of other sites in the same total as the model"
    if kind is RequestKind.COMBINE:
        sums = "are added up once, when the study ends, over all sites"
    seen = "; the coordinator sees the mean, never one site's" if hidden else ", and this protection hides no site's"
    return f"A site's measurements (accuracy, loss) {sums}{seen}."


def _named(study: Study) -> str:
    return "".join(f", {metric.name}" for metric in study.metrics.measured)


def _own_metrics(study: Study, *, hidden: bool) -> tuple[str, ...]:
    """A metric is more than its value: what is opened are the sums behind it."""
    measured = study.metrics.measured
    if not measured:
        return ()
    told = ", ".join(f"{metric.name} ({metric.sums})" for metric in measured)
    counted = (
        f"The task also measures, as sums of whole numbers over a site's test rows: {told}. The number in "
        "brackets says how many sums are shared for that metric, such as the number of rows with a score in some range."
    )
    if study.metrics.share == "per-node":
        return (f"{counted} The coordinator sees each site's sums, not only the value that they come to.",)
    whose = "of the sites that are opened together" if hidden else "of each site, since this protection hides nothing"
    return (f"{counted} The coordinator sees the sums {whose}, not only the value that they come to.",)


def _encoding(study: Study, kind: RequestKind, *, blocks: bool) -> tuple[str, ...]:
    if not blocks:
        return ()
    return (
        f"Before it is protected, the change of every parameter is cut off at ±{study.codec().clip:g}, weighted, and "
        f"rounded to {study.protection.bits} bits.",
        _weights(study) if kind is RequestKind.SUM else "Each site decides how much every other counts for it.",
    )


def _weights(study: Study) -> str:
    if study.protection.reference_samples is None:
        return "Every site counts the same, however many samples it has."
    floor = weight_floor(study.min_cohort(RequestKind.SUM), study.protection.colluders)
    if floor == WEIGHT_UNITS:
        return (
            "Every site counts the same: in circles or cohorts as small as this study allows, other weights could make "
            "one site stand out, so protection.reference_samples has no effect. A larger protection.min_cohort gives "
            "it one."
        )
    return (
        f"A site counts by its {study.make_strategy().weighs_by}, up to {study.protection.reference_samples}, where it "
        f"counts fully; it counts at least {floor / WEIGHT_UNITS:.2f} of that, so that no site stands out in a total."
    )


def _sites(study: Study) -> str:
    return f"{len(study.study.roster)} sites" if study.study.roster else "sites still to be named in its roster"


def _start(study: Study) -> tuple[str, ...]:
    if not study.study.initial:
        return ()
    given = (
        "The study lead supplies the starting model. Ask where it comes from, and for its model card. "
        "Whoever chooses a model can choose one that makes sites' updates tell more.",
    )
    return (
        f"It starts from the model with the digest {study.study.initial[:16]}…. A site starts only from this "
        "model. Later it rejects a model that changed more than the rounds in between could have changed it.",
        *(given if study.study.start == "given" else ()),
    )
