"""Each rollout owns exactly the calls made in it, however they are made."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from conftest import Received, RecordingServer
from openai import AsyncOpenAI, OpenAI
from spangrad.capture import use_scope
from spangrad_openai import OpenAIIntegration

pytestmark = pytest.mark.usefixtures("attached")

ROLLOUTS = [f"rollout-{number}" for number in range(8)]
CALLS = 3
