"""A model that judges: each answer by itself, or all answers of a group against each other.

Its weights are nobody's here to change, so scores of different steps mean the same. It is asked at temperature 0, and once
more when its reply holds no score; after that the rollout has no reward rather than one that was made up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, Final

from spangrad.errors import RewardError
from spangrad.rollouts.judging._model_question import (
    JudgeSettings,
    question_about,
    question_among,
    reminder,
    scores_in,
)
from spangrad.rollouts.judging._source import FinishedRollout
from spangrad.semconv import AGENT_HEADER

NAME: Final = "judge"
"""Of the reward, and of its source."""
_TRIES: Final = 2
_SHOWN: Final = 500
"""Characters of a reply that an error quotes, from the end."""


class ModelJudge:
    """Scores each rollout by itself.

    Args:
        settings: which model, and by what.
    """

    name = NAME

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings

    def asking(self, gateway: str, key: str) -> ModelJudge:
        """The same judge, once the URL of the run's gateway is known."""
        return ModelJudge(_asking(self._settings, gateway, key))

    async def rewards(self, rollout: FinishedRollout, *, limit: float | None) -> Mapping[str, float]:
        """See `RewardSource`."""
        question = question_about(self._settings, rollout.task, rollout.output_text())
        (score,) = await asked(self._settings, question, 1, limit=limit)
        return {NAME: score}

    def close(self) -> None:
        """Nothing is kept open."""


class GroupJudge:
    """Scores the rollouts of a group with one question that shows all their answers.

    Args:
        settings: which model, and by what.
    """

    name = NAME

    def __init__(self, settings: JudgeSettings) -> None:
        self._settings = settings

    def asking(self, gateway: str, key: str) -> GroupJudge:
        """The same judge, once the URL of the run's gateway is known."""
        return GroupJudge(_asking(self._settings, gateway, key))

    async def rewards(self, group: Sequence[FinishedRollout], *, limit: float | None) -> Sequence[Mapping[str, float]]:
        """The rewards of each rollout, in order.

        Args:
            group: the rollouts of one task whose agents ended by themselves, at least one.
            limit: seconds it may take; None does not limit.

        Raises:
            RewardError: there are none, with what went wrong; it is so for the whole group.
        """
        answers = [rollout.output_text() for rollout in group]
        order = _shown_order(group)
        question = question_among(self._settings, group[0].task, [answers[place] for place in order])
        scores = await asked(self._settings, question, len(group), limit=limit)
        return [{NAME: score} for _, score in sorted(zip(order, scores, strict=True))]


def _shown_order(group: Sequence[FinishedRollout]) -> list[int]:
    """The places of a group's answers in the order they are shown, another for each group, and the same in a resumed run.

    Judges prefer answers for their place, so that no member of a group may have the same one in every step.
    """
    order = list(range(len(group)))
    Random("\n".join(rollout.rollout_id for rollout in group)).shuffle(order)
    return order


def _asking(settings: JudgeSettings, gateway: str, key: str) -> JudgeSettings:
    """Settings that name an endpoint stay as they are."""
    return settings if settings.endpoint is not None else replace(settings, endpoint=gateway, api_key=key)


async def asked(settings: JudgeSettings, question: str, count: int, *, limit: float | None) -> list[float]:
    """Asks for scores, and once more when there are none in the reply or no reply comes.

    Raises:
        RewardError: the second time there were none either.
    """
    messages = [{"role": "user", "content": question}]
    trouble = ""
    try:
        async with asyncio.timeout(limit):
            for _ in range(_TRIES):
                try:
                    reply = await _reply(settings, messages)
                except RewardError as error:
                    trouble = str(error)
                    continue
                if (scores := scores_in(settings, reply, count)) is not None:
                    return scores
                trouble = (
                    f"The judge {settings.model!r} gave no {_wanted(settings, count)}; it said: {reply[-_SHOWN:]!r}"
                )
                messages += [
                    {"role": "assistant", "content": reply},
                    {"role": "user", "content": reminder(settings, count)},
                ]
    except TimeoutError as error:
        raise RewardError(f"The judge {settings.model!r} was still busy after {limit:g} seconds") from error
    raise RewardError(trouble, cure="Ask for less in rewards.judge.criteria, or take a model that follows instructions")


def _wanted(settings: JudgeSettings, count: int) -> str:
    noun = "score" if count == 1 else f"{count} scores"
    return f"{noun} from {settings.lowest:g} to {settings.highest:g}"


async def _reply(settings: JudgeSettings, messages: Sequence[Mapping[str, str]]) -> str:
    """The model's answer.

    Raises:
        RewardError: it cannot be reached, refuses, or answers with something else than a chat completion.
    """
    import httpx  # noqa: PLC0415 - only where a model judges

    if settings.endpoint is None:
        raise RewardError("The judge is a route of a gateway, and nobody said where that is")
    who = f"The judge at {settings.endpoint}"
    headers = {AGENT_HEADER: NAME} | ({"authorization": f"Bearer {settings.api_key}"} if settings.api_key else {})
    body: dict[str, Any] = {"model": settings.model, "messages": messages, "temperature": 0}
    try:
        # No limit here: the caller's holds. A new client each time, because a client belongs to one event loop.
        async with httpx.AsyncClient(timeout=None, headers=headers) as client:  # noqa: S113 - as said
            response = await client.post(f"{settings.endpoint.rstrip('/')}/chat/completions", json=body)
        if response.is_error:
            raise RewardError(f"{who} answered {response.status_code}: {response.text[:_SHOWN]}")
        reply = response.json()["choices"][0]["message"]["content"]
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise RewardError(f"{who} cannot be reached: {str(error) or type(error).__name__}") from error
    except (ValueError, LookupError, TypeError) as error:
        if isinstance(error, RewardError):
            raise
        raise RewardError(f"{who} answered with no chat completion: {response.text[:_SHOWN]}") from error
    if not isinstance(reply, str):
        raise RewardError(f"{who} answered with no text: {reply!r}")
    return reply
