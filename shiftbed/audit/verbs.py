"""The verb `audit_sweep`, for Python and the command line alike."""

from collections.abc import Callable
from pathlib import Path

from shiftbed.audit.boards import ranking, ranking_against
from shiftbed.audit.completeness import draws, published_table
from shiftbed.audit.duplicates import duplicates
from shiftbed.audit.findings import Audit, Finding
from shiftbed.audit.oracle import joint_leakage, oracle_gap
from shiftbed.audit.queries import query_budget
from shiftbed.audit.spaces import search_spaces
from shiftbed.audit.splits import augmented_validation, initial_weights, training_labels, validation_domains
from shiftbed.audit.subject import Subject
from shiftbed.audit.variance import variance
from shiftbed.errors import ShiftbedError
from shiftbed.sweeps.blind import is_sealed, refuse_sealed, sealed
from shiftbed.training.store import LocalStore

Check = Callable[[Subject], Finding]
# Those that read no accuracy on a test domain come first.
WITHOUT_TEST: tuple[Check, ...] = (
    *(draws, search_spaces, validation_domains, training_labels, augmented_validation, duplicates, initial_weights),
)
WITH_TEST: tuple[Check, ...] = (oracle_gap, joint_leakage, query_budget, variance, ranking)


def audit_sweep(
    folder: str | Path,
    *,
    blind: bool = False,
    table: str | Path | None = None,
    against: str | Path | None = None,
    study: Callable[[Subject], Finding] | None = None,
    on_progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> Audit:
    """How much knowledge of the test domains could have leaked into a sweep's numbers, source by source.

    Args:
        folder: The sweep's folder.
        blind: Use no recorded number; what needs accuracies on test domains is left out. A sealed sweep is always
            audited so.
        table: A published table, as `shiftbed tables DIR --format json` writes it, to check against the records.
        against: Another sweep's folder, whose leaderboard is put beside this one's.
        study: Answers the question of pretraining by training, such as `pretraining.run_study`.
        on_progress: Called with what is being done, how much of it, and how much there is.

    Raises:
        ShiftbedError: The audit is blind, and a table or another leaderboard is to be compared with test accuracies.
        StoreError: No job is finished there; or a study, a table or another leaderboard is asked for and sealed.
    """
    needs_test = [name for name, given in (("--table", table), ("--against", against)) if given is not None]
    if blind and needs_test:
        options = " and ".join(needs_test)
        need = "need" if len(needs_test) > 1 else "needs"
        raise ShiftbedError(
            f"A blind audit uses no accuracy on test domains, which {options} {need}; leave --blind or {options} out."
        )
    reason = "not looked at: the audit is blind."
    if is_sealed(LocalStore(Path(folder))):
        blind, reason = True, sealed(folder)
    for needed in (folder if study or needs_test else None, against):
        if needed is not None:
            refuse_sealed(needed)
    subject = Subject.read(folder, blind=blind)
    checks = [*WITHOUT_TEST, *(() if blind else WITH_TEST)]
    if study is not None:
        checks[checks.index(initial_weights)] = study
    if table is not None:
        checks.append(lambda one: published_table(one, Path(table)))
    if against is not None:
        other = Subject.read(against)
        checks.append(lambda one: ranking_against(one, other))
    findings = []
    for number, check in enumerate(checks):
        on_progress("auditing", number, len(checks))
        findings.append(check(subject))
    if blind:
        findings.append(Finding("test accuracies", "unknown", reason))
    return Audit(str(folder), len(subject.abouts), findings)
