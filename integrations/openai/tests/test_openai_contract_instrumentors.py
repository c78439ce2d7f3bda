"""What the contract says of other instrumentors is only worth something where those are at work."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from integrations.openai.tests.test_openai_contract import TestOpenAIContract as Contract
from opentelemetry.instrumentation.instrumentor import (  # type: ignore[attr-defined]  # its module opts out of types
    BaseInstrumentor,
)

from spangrad.testing._contract._stage import open_stage


class Deaf(BaseInstrumentor):  # type: ignore[misc]  # as above
    """An instrumentor that hears of nothing."""

    _instance = None  # there is one object of each class

    def instrumentation_dependencies(self) -> Collection[str]:
        return ()

    def _instrument(self, **options: Any) -> None:
        pass

    def _uninstrument(self, **options: Any) -> None:
        pass


class OfAnotherOpenAI(Deaf):
    """One that finds an openai it does not support."""

    _instance = None

    def instrumentation_dependencies(self) -> Collection[str]:
        return ("openai < 1",)


@pytest.mark.parametrize(
    ("instrumentor", "complaint"),
    [
        (Deaf, "Deaf made no span even without the integration"),
        (OfAnotherOpenAI, "OfAnotherOpenAI does nothing here, for it supports openai < 1: install"),
    ],
)
async def test_an_instrumentor_that_does_nothing_proves_nothing(
    tmp_path: Path, instrumentor: type[Deaf], complaint: str
) -> None:
    class Subject(Contract):
        instrumentors: ClassVar[Mapping[str, str]] = {instrumentor.__name__: f"{__name__}:{instrumentor.__name__}"}

    async with open_stage(tmp_path) as stage:
        with pytest.raises(AssertionError, match=complaint):
            await Subject().test_the_programs_own_instrumentor_gets_its_spans_and_nothing_is_doubled(
                stage, instrumentor.__name__, "program"
            )
