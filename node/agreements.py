"""What this site agreed to: a study, and the code that it runs here.

A study's hash does not say which code a task is: that is installed at the site. So an approval by hand also has the
digest of the code as it was then, and a site whose task has changed is asked again. Hashes listed in the node's file
say nothing about code; the ledger says which one ran. Where only the file counts, approvals by hand do not.
"""

from __future__ import annotations

from collections.abc import Mapping

from node.approvals import Approvals
from node.config import NodeFile
from node.privacy import plan_here
from secure_fl.errors import CodeChangedError, RefusedError, SecureFLError
from secure_fl.privacy.accountant import Accountant
from secure_fl.privacy.decisions import approval
from secure_fl.study.settings import Study
from secure_fl.tasks.files import TaskFile

LISTED_IN_FILE = "[policy] approved in the node's file"


class Agreements:
    """Checks that what is about to run is what was agreed to, and has the ledger say so."""

    def __init__(self, file: NodeFile, approvals: Approvals, accountant: Accountant) -> None:
        self._file = file
        self._approvals = approvals
        self._accountant = accountant

    def task_file(self, study: Study, *, number: int) -> TaskFile | None:
        """The file that has the study's task, with the digest that was approved; None for a task from a package.

        Raises `CodeChangedError` if it is another file by now; nothing of it has run then, and the ledger says so.
        """
        path = self._file.task_files.get(study.task.name)
        if path is None:
            return None
        given = self._approvals.read().get(study.id) if self._file.policy.approve == "ask" else None
        file = TaskFile(path=path, sha256="" if given is None else given.file)
        try:
            file.read()
            if given is not None and not given.file:  # by its hash alone, before this node knew which task it has
                raise CodeChangedError(
                    f"study {study.study.name!r} was approved before anybody saw here which code it runs"
                )
        except CodeChangedError:
            self._accountant.refused(study.id, number, RefusedError.code)
            raise
        return file

    def package(self, study: Study) -> str:
        """The digest of the package that has the study's task, as it was approved; empty where nobody said."""
        given = self._approvals.read().get(study.id) if self._file.policy.approve == "ask" else None
        return "" if given is None else given.package

    def refused(self, study: Study, *, number: int) -> None:
        """Have the ledger say, once, that round `number` was refused for its code."""
        self._accountant.refused(study.id, number, RefusedError.code)

    def require(self, study: Study, found: Mapping[str, str], *, number: int) -> None:
        """Raise `CodeChangedError` if the code that would train round `number` is another than was approved.

        Either way the ledger says so, once.
        """
        by_hand = self._file.policy.approve == "ask"
        given = self._approvals.read().get(study.id) if by_hand else None
        code = found.get("code")
        if given is not None and given.code is not None and code is not None and given.code != code:
            self._accountant.refused(study.id, number, RefusedError.code)
            raise changed_code(study)
        by = LISTED_IN_FILE if given is None else given.by or "unknown"
        facts = approval(
            study_id=study.id,
            name=study.study.name,
            by=by,
            dataset=study.task.dataset_id,
            epsilon=planned_epsilon(self._file, study),
            code=code,
        )
        self._accountant.approved(study.id, facts)


def changed_code(study: Study) -> CodeChangedError:
    """The error for a study that was approved with other code than its task has here now."""
    task, name = study.task.name, study.study.name
    return CodeChangedError(f"the code of task {task!r} is another than when study {name!r} was approved here")


def planned_epsilon(file: NodeFile, study: Study) -> float | None:
    """What a study plans to spend here; None where nothing bounds it, or no plan can be made."""
    try:
        plan = plan_here(file, study)
    except SecureFLError:
        return None
    return None if plan is None else plan.epsilon
