"""What can be checked before a run: this machine, the environment, a backend, servers."""

from mcpagent.core.records import CheckResult, CheckStatus

PASS, WARN, FAIL, SKIP = CheckStatus.PASS, CheckStatus.WARN, CheckStatus.FAIL, CheckStatus.SKIP


def result(name: str, status: CheckStatus, detail: str, remedy: str | None = None) -> CheckResult:
    """Return a result; the remedy is left out if the check passed."""
    return CheckResult(
        name=name, status=status, detail=detail, remedy=None if status is CheckStatus.PASS else remedy
    )
