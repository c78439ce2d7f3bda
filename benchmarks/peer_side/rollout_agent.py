"""The agent of the rollouts' benchmark, for both sides: three calls, one after the other, and a reward. Standard library only."""

from __future__ import annotations

import json
import os
import urllib.request
from typing import Any

CALLS = 3
REWARD = 1.0


def post(url: str, body: Any, key: str = "") -> Any:
    """One request."""
    headers = {"content-type": "application/json", "authorization": f"Bearer {key}"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)  # noqa: S310 - this machine's own
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def work(base_url: str, key: str) -> None:
    """The calls."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Begin"}]
    for _ in range(CALLS):
        answer = post(f"{base_url}/chat/completions", {"model": "policy", "messages": messages}, key)
        messages += [answer["choices"][0]["message"], {"role": "user", "content": "Go on"}]


class Agent:
    """As Agent Lightning 1.0 runs it, in a process of its own."""

    def run(self) -> None:
        """One rollout."""
        work(os.environ["AGL_OPENAI_BASE_URL"], "")
        post(os.environ["AGL_EVENT_URL"], {"event_type": "reward", "data": {"value": REWARD}})
