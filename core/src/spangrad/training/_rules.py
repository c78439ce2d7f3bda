"""From `[[rewards.rules]]` to the rules of a run."""

from __future__ import annotations

import inspect
from collections import Counter

from spangrad.errors import ConfigError
from spangrad.rollouts import is_async, load_function
from spangrad.rollouts.rules import Rule
from spangrad.training._config import RuleTable
from spangrad.training._loaded_config import LoadedConfig
from spangrad.training._problems import Problems


def load_rules(loaded: LoadedConfig, problems: Problems) -> tuple[Rule, ...]:
    """The rules, with the user's functions loaded.

    Args:
        loaded: the settings.
        problems: gets what is wrong: two rules of one name, a name without a weight where others have one, functions that
            cannot be loaded or do not take calls and spans.
    """
    tables, weights = loaded.config.rewards.rules, loaded.config.rewards.weights
    counts = Counter(table.reward_name for table in tables)
    rules: list[Rule] = []
    for index, table in enumerate(tables):
        name = table.reward_name
        key = "when" if table.name is None else "name"
        if counts[name] > 1 and name in {rule.name for rule in rules}:
            what = f"another rule has the name {name!r}; give each a name of its own"
            problems.add(("rewards", "rules", index, key), what)
        if weights and name not in weights:
            problems.add(("rewards", "rules", index, key), f"rewards.weights has no weight for {name!r}")
        with problems.at("rewards", "rules", index, "call"):
            rules.append(_rule(table, loaded))
    return tuple(rules)


def _rule(table: RuleTable, loaded: LoadedConfig) -> Rule:
    function = None
    if table.call is not None:
        function = load_function(table.call, loaded.folder, noun="rule's function", error=ConfigError)
        try:
            inspect.signature(function).bind((), ())
        except TypeError as error:
            raise ConfigError(
                f"The rule's function {table.call!r} cannot be called with calls and spans: {error}",
                cure="Define it like `def rule(calls, spans)`",
            ) from error
    numbers = {key: value for key in ("reward", "at_least", "seconds") if (value := getattr(table, key)) is not None}
    return Rule(
        name=table.reward_name,
        when=table.when,
        tool=table.tool,
        agent=table.agent,
        at_most=table.at_most,
        function=function,
        function_name=table.call or "",
        asynchronous=function is not None and is_async(function),
        **numbers,
    )
