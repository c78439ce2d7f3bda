"""The model that judges: what it is asked, how its reply is read, and what happens when there is no score in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import pytest

from spangrad.errors import RewardError
from spangrad.rollouts.judging import FinishedRollout, GroupJudge, JudgeSettings, ModelJudge
from spangrad.rollouts.judging._model_question import scores_in
from spangrad.testing import ScriptedEndpoint

SETTINGS = JudgeSettings("http://127.0.0.1:1/v1", "judge-model", "", "The answer is right and short.")

Serve = Callable[..., tuple[ScriptedEndpoint, JudgeSettings]]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """A server that gives the replies one after another, and settings that ask it."""
    with ExitStack() as running:

        def make(*replies: str, **options: Any) -> tuple[ScriptedEndpoint, JudgeSettings]:
            left = list(replies)
            endpoint = running.enter_context(ScriptedEndpoint(lambda _: left.pop(0), token_ids=False, **options))
            return endpoint, JudgeSettings(endpoint.base_url, "judge-model", "secret", SETTINGS.criteria, 0.0, 1.0)

        yield make


def rollout(output: Any, number: int = 0) -> FinishedRollout:
    return FinishedRollout(f"r-{number}", 1, "t", {"question": "2+2?"}, output)


def said(body: Mapping[str, Any]) -> list[str]:
    return [message["content"] for message in body["messages"]]


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("It is right.\nScore: 0.75", [0.75]),
        ("**Score:** 1", [1.0]),
        ("score = .5.", [0.5]),
        ("Score: 0.1 at first, but then again: Score: 0.9", [0.9]),
        (" 0.25\n", [0.25]),
        ("Score: 2", None),
        ("Score: -0.1", None),
        ("Score: high", None),
        ("I would give it 0.5", None),
        ("", None),
    ],
)
def test_one_score_is_read(text: str, scores: list[float] | None) -> None:
    assert scores_in(SETTINGS, text, 1) == scores


@pytest.mark.parametrize(
    ("text", "scores"),
    [
        ("The first is best.\nScores: 1, 0, 0.5", [1.0, 0.0, 0.5]),
        ("**Scores:** `0.1`, `0.2`, `0.3`.", [0.1, 0.2, 0.3]),
        ("Scores: [0.1, 0.2, 0.3]", [0.1, 0.2, 0.3]),
        ("Scores: 1, 0", None),
        ("Scores: 1, 0, 0.5, 0.5", None),
        ("Scores: 1, best, 0.5", None),
        ("Scores: 1, 0, 7", None),
        ("Score: 1", None),
        ("1, 0, 0.5", None),
    ],
)
def test_as_many_scores_as_answers_are_read(text: str, scores: list[float] | None) -> None:
    assert scores_in(SETTINGS, text, 3) == scores


async def test_it_is_shown_task_answer_and_criteria_at_temperature_0_with_its_key(serve: Serve) -> None:
    endpoint, settings = serve("Fine.\nScore: 0.75")
    assert await ModelJudge(settings).rewards(rollout("four"), limit=30) == {"judge": 0.75}
    (request,) = endpoint.requests
    assert (request.body["model"], request.body["temperature"]) == ("judge-model", 0)
    assert request.headers["authorization"] == "Bearer secret"
    (question,) = said(request.body)
    for part in ('"question": "2+2?"', "four", SETTINGS.criteria, "Score: X", "from 0 (worst) to 1 (best)"):
        assert part in question


async def test_a_reply_without_a_score_is_answered_with_a_reminder_once(serve: Serve) -> None:
    endpoint, settings = serve("Splendid!", "Score: 1")
    assert await ModelJudge(settings).rewards(rollout("four"), limit=30) == {"judge": 1.0}
    question, reply, reminder = said(endpoint.requests[1].body)
    assert (question, reply) == (said(endpoint.requests[0].body)[0], "Splendid!")
    assert "No score could be read" in reminder


async def test_the_second_time_the_rollout_has_no_reward_and_the_reply_is_shown(serve: Serve) -> None:
    endpoint, settings = serve("Splendid!", "As I said: splendid!")
    with pytest.raises(RewardError, match=r"gave no score from 0 to 1; it said: 'As I said: splendid!'"):
        await ModelJudge(settings).rewards(rollout("four"), limit=30)
    assert len(endpoint.requests) == 2


async def test_a_server_that_fails_once_is_asked_again_and_twice_is_no_reward(serve: Serve) -> None:
    _, settings = serve("Score: 1", fail_first=1)
    assert await ModelJudge(settings).rewards(rollout("four"), limit=30) == {"judge": 1.0}
    endpoint, settings = serve("Score: 1", fail_first=2, fail_status=503)
    with pytest.raises(RewardError, match=r"The judge at http://.* answered 503"):
        await ModelJudge(settings).rewards(rollout("four"), limit=30)
    assert len(endpoint.requests) == 2


async def test_nobody_there_is_no_reward() -> None:
    with pytest.raises(RewardError, match=r"The judge at http://127\.0\.0\.1:1/v1 cannot be reached"):
        await ModelJudge(SETTINGS).rewards(rollout("four"), limit=30)


async def test_a_judge_that_takes_too_long_is_no_reward(serve: Serve) -> None:
    _, settings = serve("Score: 1", delay=30.0)
    with pytest.raises(RewardError, match=r"still busy after 0\.3 seconds"):
        await ModelJudge(settings).rewards(rollout("four"), limit=0.3)


WORTH = {"five": 0.25, '{"answer": 4}': 1.0, "three": 0.0}


def shown(body: Mapping[str, Any]) -> list[str]:
    """The answers of a question, in its order."""
    return re.findall(r"^Answer \d:\n(.*)$", said(body)[0], flags=re.MULTILINE)


async def test_a_group_is_compared_in_one_question_and_each_gets_its_own_score() -> None:
    def judged(body: Mapping[str, Any]) -> str:
        return f"Scores: {', '.join(str(WORTH[answer]) for answer in shown(body))}"

    with ScriptedEndpoint(judged, token_ids=False) as endpoint:
        judge = GroupJudge(replace(SETTINGS, endpoint=endpoint.base_url))
        for number in (0, 0, *range(1, 12)):
            group = [rollout(out, number * 3 + i) for i, out in enumerate(("five", {"answer": 4}, "three"))]
            assert await judge.rewards(group, limit=30) == [{"judge": 0.25}, {"judge": 1.0}, {"judge": 0.0}]
        orders = [tuple(shown(request.body)) for request in endpoint.requests]
    assert orders[0] == orders[1]  # the same group, as in a resumed run
    assert {order[0] for order in orders} == set(WORTH)  # no place belongs to one member for good
    assert "3 numbers from 0" in said(endpoint.requests[0].body)[0]


async def test_too_few_scores_for_a_group_are_none_at_all(serve: Serve) -> None:
    _, settings = serve("Scores: 1", "Scores: 1")
    with pytest.raises(RewardError, match="gave no 2 scores from 0 to 1"):
        await GroupJudge(settings).rewards([rollout("a"), rollout("b", 1)], limit=30)
