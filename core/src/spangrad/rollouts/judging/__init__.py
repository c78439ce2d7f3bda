"""Where rewards come from once an agent has ended: processes, commands and models that judge what it did."""

from spangrad.rollouts.judging._check import Check
from spangrad.rollouts.judging._evaluator import Evaluator
from spangrad.rollouts.judging._model_judge import GroupJudge, ModelJudge
from spangrad.rollouts.judging._model_question import JudgeSettings
from spangrad.rollouts.judging._source import FinishedRollout, RewardSource

__all__ = [
    "Check",
    "Evaluator",
    "FinishedRollout",
    "GroupJudge",
    "JudgeSettings",
    "ModelJudge",
    "RewardSource",
]
