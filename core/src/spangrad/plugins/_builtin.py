"""What comes with spangrad itself, registered through the same door as everybody else's."""

from __future__ import annotations

from spangrad.plugins._hookspecs import hookimpl
from spangrad.plugins._registry import Register


@hookimpl
def spangrad_register(register: Register) -> None:
    """Registers the credit assigners and advantage estimators of `spangrad.lightningrl`."""
    # Imported here because lightningrl needs numpy, and whoever only imports this package should not wait for it.
    from spangrad.lightningrl import builtin_credit_assigners, builtin_estimators  # noqa: PLC0415

    for name, assigner in builtin_credit_assigners().items():
        register.credit_assigner(name, assigner)
    for name, estimator in builtin_estimators().items():
        register.advantage_estimator(name, estimator)
