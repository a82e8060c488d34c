"""What an attempt uses of the node it runs in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from node.agreements import Agreements
from node.comparisons import ComparisonBook
from node.config import NodeFile
from node.events import NodeListener, ignore
from node.policy import Policy
from node.session import Session
from node.training.executor import Executor
from node.training.seeds import DataSecrets
from secure_fl.identity.member import Member
from secure_fl.privacy.accountant import Accountant
from secure_fl.protect.past import Past
from secure_fl.protect.witness import Witness
from secure_fl.randomness import Randomness
from secure_fl.study.resolved import ResolvedStudy


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteServices:
    """What an attempt uses of the node it runs in, and does not own."""

    file: NodeFile
    me: Member
    policy: Policy
    accountant: Accountant
    executor: Executor
    comparisons: ComparisonBook
    session: Session
    past: Past  # the sums that the site was part of, over all studies
    witness: Witness  # its ledger, and its notes of others'
    randomness: Callable[..., Randomness]  # a fresh source for one attempt
    training_seed: Callable[[ResolvedStudy, int], int]  # of a round
    data_secrets: Callable[[ResolvedStudy, int, int], DataSecrets]  # of a round and attempt
    agreements: Agreements  # to studies, and the code they run
    # A study for which this site is not ready: what to try again, and what it failed with.
    unready: Callable[[str, Callable[[], Awaitable[object]], Exception], None]
    listener: NodeListener = ignore
