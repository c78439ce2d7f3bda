"""Running agents on tasks: what an agent is, and the runner that runs many of them at once."""

from spangrad.rollouts._agents import Agent, CommandAgent, FunctionAgent, load_agent, load_command
from spangrad.rollouts._job import RolloutJob, RolloutResult
from spangrad.rollouts._json_data import problem_of
from spangrad.rollouts._judges import Judges
from spangrad.rollouts._loading import is_async, load_function
from spangrad.rollouts._overlong import OVERLONG, Overlong
from spangrad.rollouts._process_environment import clients_pointed_at
from spangrad.rollouts._rule_rewards import work_of
from spangrad.rollouts._runner import Runner
from spangrad.rollouts._scoring import RewardFunction, load_reward
from spangrad.rollouts._task import Task

__all__ = [
    "OVERLONG",
    "Agent",
    "CommandAgent",
    "FunctionAgent",
    "Judges",
    "Overlong",
    "RewardFunction",
    "RolloutJob",
    "RolloutResult",
    "Runner",
    "Task",
    "clients_pointed_at",
    "is_async",
    "load_agent",
    "load_command",
    "load_function",
    "load_reward",
    "problem_of",
    "work_of",
]
