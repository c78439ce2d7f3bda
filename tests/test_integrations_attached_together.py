"""All integrations in one process: each keeps its contract beside the others, and they come and go in any order."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from integrations.autogen.tests.test_autogen_contract import TestAutoGenContract as AutoGenContract
from integrations.langchain.tests.test_langchain_contract import TestLangChainContract as LangChainContract
from integrations.openai.tests.test_openai_contract import TestOpenAIContract as OpenAIContract
from integrations.openai_agents.tests.test_openai_agents_contract import TestOpenAIAgentsContract as AgentsContract

from spangrad.plugins import Integration, PluginState, load_plugins
from spangrad.testing import IntegrationContract
from spangrad.testing._contract._places import differences, places

NAMES = ("autogen", "langchain", "openai", "openai-agents")
KEPT = (
    "test_each_structure_is_recorded_as_it_ran",
    "test_the_reference_conversation_gives_the_reference_transitions",
    "test_rollouts_in_an_executor_own_their_calls",
    "test_detaching_after_work_restores_every_attribute",
)
"""What is run again with all integrations attached; the rest of each contract is that integration's own affair."""
PACKAGES = (
    "agents",
    "autogen_agentchat",
    "autogen_core",
    "autogen_ext",
    "langchain",
    "langchain_core",
    "openai",
    "threading",
)


def integrations() -> list[Integration]:
    """All that are installed, by name."""
    return [row.value for row in load_plugins().integrations]


class Everything:
    """All integrations as one."""

    framework = "openai"

    def attach(self) -> Callable[[], None]:
        stack = ExitStack()
        for integration in integrations():
            stack.callback(integration.attach())
        return stack.close

    def describe(self) -> Mapping[str, str]:
        return {key: value for integration in integrations() for key, value in integration.describe().items()}


def among_all(contract: type[IntegrationContract]) -> type[IntegrationContract]:
    """Some of the contract's tests, with all integrations attached."""
    others = [name for name in dir(contract) if name.startswith("test_") and name not in KEPT]
    own: dict[str, Any] = {"integration": lambda _: Everything(), "packages": PACKAGES, "__module__": __name__}
    return type(f"Test{contract.__name__}AmongAll", (contract,), own | dict.fromkeys(others))


TestAutoGenAmongAll = among_all(AutoGenContract)
TestLangChainAmongAll = among_all(LangChainContract)
TestOpenAIAmongAll = among_all(OpenAIContract)
TestOpenAIAgentsAmongAll = among_all(AgentsContract)


def test_every_integration_is_loaded() -> None:
    plugins = load_plugins()
    assert set(NAMES) <= set(plugins.integrations.names())
    states = {row.name: row.state for row in plugins.report}
    assert {name: states[name] for name in NAMES} == dict.fromkeys(NAMES, PluginState.LOADED)


@pytest.mark.parametrize("order", list(itertools.permutations(range(4)))[::5], ids=str)
def test_integrations_may_be_detached_in_any_order(order: tuple[int, ...]) -> None:
    Everything().attach()()  # what attaching imports is there from now on
    before = places(PACKAGES)
    with ExitStack() as left:
        ends = [left.callback(integration.attach()) for integration in integrations()]
        assert differences(before, places(PACKAGES)) != []
        for number in order:
            ends[number]()
        assert differences(before, places(PACKAGES)) == []


def test_what_stays_attached_keeps_working_when_the_others_go() -> None:
    everyone = integrations()
    for staying in everyone:
        with ExitStack() as stack:
            stack.callback(staying.attach())
            alone = dict(staying.describe())
            for other in everyone:
                if other is not staying:
                    other.attach()()
            assert dict(staying.describe()) == alone
