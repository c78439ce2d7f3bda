"""The private tracer provider is one, whoever asks first."""

from __future__ import annotations

import subprocess
import sys

RACE = """\
import sys, threading
sys.setswitchinterval(1e-6)
from spangrad.capture import tracer_provider
barrier, found = threading.Barrier(16), []

def ask():
    barrier.wait()
    found.append(tracer_provider())

threads = [threading.Thread(target=ask) for _ in range(16)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
print(len({id(provider) for provider in found}))
"""


def test_threads_that_ask_first_at_once_get_the_same_provider() -> None:
    done = subprocess.run([sys.executable, "-c", RACE], capture_output=True, text=True, timeout=60, check=True)

    assert done.stdout.strip() == "1"
