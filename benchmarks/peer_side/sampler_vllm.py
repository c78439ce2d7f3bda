"""vLLM's side of sampler.py: rollouts of two turns, by its engine in this process."""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any


class Engine:
    """vLLM on the CPU, in fp32, with its prefix cache."""

    def __init__(self, asked: dict[str, Any]) -> None:
        from vllm import LLM  # noqa: PLC0415 - it reads the environment when it is imported

        self._llm = LLM(
            model=asked["model"],
            dtype="float32",
            enforce_eager=True,
            enable_prefix_caching=True,
            max_model_len=asked["longest"],
            max_num_seqs=asked["rows"],
            disable_log_stats=True,
        )

    def answers(self, prompts: list[list[int]], tokens: int, *, temperature: float) -> list[list[int]]:
        """To each prompt, of exactly so many tokens."""
        from vllm import SamplingParams  # noqa: PLC0415 - as above

        params = SamplingParams(
            temperature=temperature,
            top_p=1.0,
            top_k=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            logprobs=0,  # of the drawn tokens
        )
        found = self._llm.generate([{"prompt_token_ids": ids} for ids in prompts], params, use_tqdm=False)
        return [list(one.outputs[0].token_ids) for one in found]

    def rollouts(self, asked: dict[str, Any]) -> list[float]:
        """Seconds of two turns of every rollout: by the clock, and of the processor."""
        self._llm.reset_prefix_cache()
        begun = time.perf_counter(), time.process_time()
        prompts = asked["prompts"]
        found = self.answers(prompts, asked["answer"], temperature=1.0)
        prompts = [ids + reply + asked["tool"] for ids, reply in zip(prompts, found, strict=True)]
        self.answers(prompts, asked["answer"], temperature=1.0)
        return [time.perf_counter() - begun[0], time.process_time() - begun[1]]


def main() -> None:
    """Answers until the input ends."""
    threads = int(sys.argv[1])
    os.environ.update(
        VLLM_CPU_KVCACHE_SPACE="2",
        VLLM_CPU_NUM_OF_RESERVED_CPU="0",
        VLLM_CPU_OMP_THREADS_BIND=f"0-{threads - 1}",
        VLLM_ENABLE_V1_MULTIPROCESSING="0",
        VLLM_LOGGING_LEVEL="WARNING",
        VLLM_NO_USAGE_STATS="1",
        OMP_NUM_THREADS=str(threads),
    )
    engine: Engine | None = None
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["do"] == "load":
            engine = Engine(asked)
            reply: Any = "loaded"
        else:
            assert engine is not None  # noqa: S101 - loaded first
            if asked["do"] == "greedy":
                reply = engine.answers(asked["prompts"], asked["answer"], temperature=0.0)
            else:
                reply = engine.rollouts(asked)
        print(json.dumps({"answer": reply}), flush=True)


if __name__ == "__main__":
    main()
