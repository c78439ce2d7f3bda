"""spangrad's gateway in a process of its own, recording into an SQLite file.

Arguments: the upstream's port, and the folder of the store. Prints {"answer": {"port", "path", "key"}}; a line on its standard input
asks for {"answer": how many calls are recorded}. Serves until its standard input ends.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from spangrad.gateway import EndpointEngine, Gateway, Route
from spangrad.store import open_store


def main() -> None:
    """Serves."""
    upstream, folder = sys.argv[1], Path(sys.argv[2])
    store = open_store(folder / "spangrad.db")
    engine = EndpointEngine(f"http://127.0.0.1:{upstream}/v1", policy_version=1)
    with Gateway(store, [Route("policy", engine, "policy")]) as gateway:
        access = gateway.open_rollout("rollout-1", 1)
        url = urlsplit(access.base_url)
        print(json.dumps({"answer": {"port": url.port, "path": url.path, "key": access.api_key}}), flush=True)
        for _ in sys.stdin:
            print(json.dumps({"answer": dict(store.counts())}), flush=True)
    store.close()


if __name__ == "__main__":
    main()
