"""Whether a credit assigner, an estimator, a grouping and a backend go together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl._builtins import AdvantageEstimatorFactory, builtin_estimators, configured, name_of
from spangrad.lightningrl._grouping import Grouping
from spangrad.lightningrl.credit import CreditAssigner, CreditNeeds, Identical, Sum, needs_of
from spangrad.lightningrl.estimators import Estimator, RememberingEstimator, Requirements, ValueEstimator


def check_compatible(
    credit: CreditAssigner,
    estimator: Estimator,
    grouping: Grouping,
    *,
    names: tuple[str, str],
    rollouts_per_task: int,
    estimator_levels: Collection[str],
    values: bool,
) -> None:
    """See `LightningRL.check`; the first problem found is raised.

    Args:
        credit: the credit assigner.
        estimator: the advantage estimator.
        grouping: who is compared with whom beyond that.
        names: what the configuration calls assigner and estimator.
        rollouts_per_task: as for `LightningRL.check`.
        estimator_levels: likewise.
        values: likewise.

    Raises:
        ConfigError: they do not.
        PluginError: the estimator declares what it does not have.
    """
    needs, (credit_name, name) = estimator.requirements, names
    for declared, kind in (("memory", RememberingEstimator), ("values", ValueEstimator)):
        if getattr(needs, declared) != isinstance(estimator, kind):
            raise PluginError(
                f"The advantage estimator {name} declares {declared} = {getattr(needs, declared)}, and its methods say otherwise",
                cure=f"This is a mistake in that estimator (see {kind.__name__}); report it to its authors",
            )
    for problem in (
        *_too_few(needs, name, rollouts_per_task),
        *_against_the_grouping(needs, name, grouping),
        *_against_the_credit(needs, name, credit, credit_name),
        *_against_the_backend(needs, name, estimator_levels, values=values),
    ):
        raise problem


def _too_few(needs: Requirements, name: str, rollouts_per_task: int) -> Iterator[ConfigError]:
    if needs.among == "task" and rollouts_per_task < needs.min_group:
        yield ConfigError(
            f"{name} compares rollouts of one task and needs at least {needs.min_group}, "
            f"but rollouts_per_task is {rollouts_per_task}",
            cure="Raise rollouts_per_task; 8 is a good start",
        )


def _against_the_grouping(needs: Requirements, name: str, grouping: Grouping) -> Iterator[ConfigError]:
    if needs.among == "agent" and grouping.per_agent:
        yield ConfigError(
            f"{name} keeps each agent's calls apart anyway: per_agent = true would do nothing",
            cure="Remove per_agent",
        )
    if needs.values and grouping.per_agent:
        yield ConfigError(
            f"{name} compares no calls with others: per_agent = true would do nothing", cure="Remove per_agent"
        )
    if not needs.averages and grouping.statistics == "call":
        yield ConfigError(
            f'{name} takes no mean over the batch: statistics = "call" would do nothing',
            cure='Remove statistics = "call", or set whiten = true',
        )
    if needs.whole_rollouts and grouping.statistics == "call":
        yield ConfigError(
            f'{name} compares a rollout with the other rollouts: with statistics = "call" the rest of its own calls would '
            "be among them",
            cure='Remove statistics = "call", or choose another estimator, such as dr_grpo',
        )


def _against_the_credit(
    needs: Requirements, name: str, credit: CreditAssigner, credit_name: str
) -> Iterator[ConfigError]:
    wants = needs_of(credit)
    if needs.values and not isinstance(credit, Identical):
        yield ConfigError(
            f"{name} makes its own returns from rewards and values: the credit assigner {credit_name} would do nothing",
            cure="Remove credit, or choose an estimator that compares returns, such as grpo",
        )
    if needs.among != "task" and wants.own_groups:
        yield ConfigError(
            f"{_who(credit, credit_name, lambda part: part.own_groups)} compares calls made in the same state, but {name} would compare them with all others",
            cure="Choose an estimator that compares within groups, such as grpo or dr_grpo",
        )
    if needs.components and wants.scores:
        yield ConfigError(
            f"{name} asks the credit assigner once for each reward, and {_who(credit, credit_name, lambda part: part.scores)} would count the states' "
            "scores as many times",
            cure="Choose an estimator of the rewards' sum, such as grpo, or another credit assigner",
        )
    if needs.no_losses and wants.losses:
        yield ConfigError(
            f"{_who(credit, credit_name, lambda part: part.losses)} takes off for steps back, and {name} cannot take a return below 0",
            cure="Choose grpo, dr_grpo or rloo, or another credit assigner",
        )


def _who(credit: CreditAssigner, name: str, needs: Callable[[CreditNeeds], bool]) -> str:
    """The assigner by its name; of a sum the part that has the need."""
    if not isinstance(credit, Sum):
        return name
    part = next(part for part, _ in credit.of if needs(needs_of(part)))
    return f"{_who(part, name_of(part), needs)}, a part of {name},"


def _against_the_backend(
    needs: Requirements, name: str, levels: Collection[str], *, values: bool
) -> Iterator[ConfigError]:
    if needs.values and not values:
        yield ConfigError(
            f"{name} goes by values, but the backend has none", cure="Choose another estimator, or the backend torch"
        )
    if needs.level not in levels:
        yield ConfigError(
            f"{name} gives one advantage per {needs.level}, "
            f"but the backend takes them per {', '.join(sorted(levels)) or 'nothing'}",
            cure="Choose another estimator or another backend",
        )


def requirements_table(
    factories: Mapping[str, AdvantageEstimatorFactory] | None = None,
) -> dict[str, tuple[str, ...]]:
    """What each advantage estimator needs, in words, by its name in a train.toml.

    Args:
        factories: all that are registered; those that come with spangrad when not given.
    """
    table: dict[str, tuple[str, ...]] = {}
    for name, factory in sorted((builtin_estimators() if factories is None else factories).items()):
        try:
            table[name] = configured("advantage estimator", name, factory, {}).requirements.in_words()
        except ConfigError:
            table[name] = ("known once its options are given",)
    return table
