"""Runs in the environment of agentlightning 0.3: OTLP requests in JSON become the Protobuf its store takes.

Questions: {"path"} of a file with one JSON request in base64 on each line; each line is replaced by its Protobuf in base64.
"""

from __future__ import annotations

import base64
import json
import sys
from pathlib import Path
from typing import Any

from google.protobuf.json_format import ParseDict
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest


def protobuf(request: dict[str, Any]) -> bytes:
    """The request in Protobuf."""
    for resource in request["resourceSpans"]:
        for scope in resource["scopeSpans"]:
            for span in scope["spans"]:
                for name in ("traceId", "spanId"):  # OTLP writes ids as hexadecimal text, Protobuf's own JSON as base64
                    span[name] = base64.b64encode(bytes.fromhex(span[name])).decode()
    return bytes(ParseDict(request, ExportTraceServiceRequest()).SerializeToString())


def main() -> None:
    """Answers until nothing more is asked."""
    for line in sys.stdin:
        path = Path(json.loads(line)["path"])
        requests = [json.loads(base64.b64decode(one)) for one in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(base64.b64encode(protobuf(request)) + b"\n" for request in requests))
        print(json.dumps({"answer": len(requests)}), flush=True)


if __name__ == "__main__":
    main()
