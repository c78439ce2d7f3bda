"""The sampler against plain transformers: what it draws, the log-probabilities it reports, and how it shares a model."""

from __future__ import annotations

import asyncio
import itertools
import random
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch

from spangrad.backend import SampleDelta, SampleRequest, SamplingParams
from spangrad.errors import BackendError
from spangrad_torch import _decoder
from spangrad_torch._key_values import BLOCK
from spangrad_torch._linear import has_onednn, use_onednn
from spangrad_torch._model import LoadedModel, load_model
from spangrad_torch._sampler import TorchSampler

END = 2


@dataclass
class Answer:
    """One choice, put together from its deltas."""

    prompt: tuple[int, ...]
    params: SamplingParams
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    text: str = ""
    reason: str | None = None

    def add(self, delta: SampleDelta) -> None:
        assert self.reason is None, "nothing may follow the last delta"
        self.ids += delta.token_ids
        self.logprobs += delta.logprobs
        self.versions += [delta.policy_version] * len(delta.token_ids)
        self.text += delta.text
        self.reason = delta.finish_reason


async def ask_many(sampler: TorchSampler, request: SampleRequest) -> list[Answer]:
    """All choices of a request."""
    answers = [Answer(request.prompt_ids, request.params) for _ in range(request.choices)]
    async for delta in sampler.sample(request):
        answers[delta.choice].add(delta)
    assert all(answer.reason for answer in answers)
    return answers


async def ask(sampler: TorchSampler, prompt: Sequence[int], params: SamplingParams) -> Answer:
    """The only choice of a request."""
    return (await ask_many(sampler, SampleRequest(tuple(prompt), params)))[0]


@torch.no_grad()
def teacher_forced(loaded: LoadedModel, answer: Answer, ids: Sequence[int] | None = None) -> list[float]:
    """Log-probabilities of an answer's ids by one plain forward pass."""
    sequence = torch.tensor([*answer.prompt, *(answer.ids if ids is None else ids)])
    logits = loaded.model(sequence[None]).logits[0].float() / (answer.params.temperature or 1.0)
    start = len(answer.prompt)
    chosen: list[float] = logits.log_softmax(-1)[start - 1 : -1].gather(1, sequence[start:, None])[:, 0].tolist()
    return chosen


@pytest.fixture
def loaded(tiny_model_folder: Path) -> LoadedModel:
    return load_model(tiny_model_folder)


@pytest.fixture
def reference(tiny_model_folder: Path) -> LoadedModel:
    """The same model, untouched by a sampler."""
    return load_model(tiny_model_folder)


@pytest.fixture
async def sampler(loaded: LoadedModel) -> AsyncIterator[TorchSampler]:
    sampler = TorchSampler(loaded, max_rows=4, prefix_cache_mb=1, threads=1)
    yield sampler
    await sampler.close()


def long_prompt(length: int = 40, seed: int = 0) -> tuple[int, ...]:
    """Ordinary token ids."""
    return tuple(random.Random(seed).choices(range(3, 250), k=length))


def endless(tokens: int = 12, seed: int | None = 1) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, seed=seed)


@pytest.mark.parametrize("cache_bytes", [0, 20_000, 1 << 20])
@pytest.mark.parametrize("chunk", [7, 512])
@pytest.mark.parametrize("onednn", [False, True])
async def test_logprobs_are_those_of_a_plain_forward_pass(
    loaded: LoadedModel,
    reference: LoadedModel,
    monkeypatch: pytest.MonkeyPatch,
    *,
    cache_bytes: int,
    chunk: int,
    onednn: bool,
) -> None:
    monkeypatch.setattr(_decoder, "_CHUNK", chunk)
    if onednn:
        assert has_onednn()
        use_onednn(loaded.model)
    sampler = TorchSampler(loaded, max_rows=5, prefix_cache_mb=1, threads=1)
    sampler._decoder = _decoder.Decoder(loaded.model, max_rows=5, prefix_cache_bytes=cache_bytes)
    numbers = random.Random(3)

    async def conversation(index: int) -> list[Answer]:
        answers = []
        prompt = [*long_prompt(33, seed=index % 3)[: numbers.randint(1, 33)], *long_prompt(index % 5, seed=index)]
        for turn in range(3):
            params = SamplingParams(
                max_tokens=numbers.randint(1, 25), temperature=numbers.choice([0, 0.6, 1.0]), seed=100 * index + turn
            )
            answers.append(await ask(sampler, prompt, params))
            prompt += [*answers[-1].ids, *long_prompt(numbers.randint(1, 20), seed=turn)]
        return answers

    conversations = await asyncio.gather(*(conversation(index) for index in range(14)))
    await sampler.close()

    for answer in itertools.chain.from_iterable(conversations):
        assert answer.logprobs == pytest.approx(teacher_forced(reference, answer), abs=1e-4)
        assert len(answer.ids) == answer.params.max_tokens or answer.ids[-1] == END


@pytest.mark.parametrize("onednn", [False, True])
async def test_under_autocast_logprobs_are_those_of_a_forward_pass_under_autocast(
    loaded: LoadedModel, reference: LoadedModel, *, onednn: bool
) -> None:
    if onednn:
        use_onednn(loaded.model)
    sampler = TorchSampler(loaded, max_rows=4, threads=1, autocast=torch.bfloat16)
    prompts = [long_prompt(length, seed=length) for length in (5, 17, 40)]

    answers = await asyncio.gather(*(ask(sampler, prompt, endless(10, seed=i)) for i, prompt in enumerate(prompts)))
    await sampler.close()

    for answer in answers:
        with torch.autocast("cpu", torch.bfloat16):
            expected = teacher_forced(reference, answer)
        exact = teacher_forced(reference, answer)
        # bf16 keeps 8 bits, so another order of the same sums differs in the second decimal.
        assert answer.logprobs == pytest.approx(expected, abs=0.04)
        assert answer.logprobs != pytest.approx(exact, abs=1e-4)


async def test_greedy_answers_are_those_of_generate(sampler: TorchSampler, reference: LoadedModel) -> None:
    prompts = [long_prompt(length, seed=length) for length in (1, 5, 16, 17, 31, 48)]
    params = SamplingParams(temperature=0, max_tokens=20)

    answers = await asyncio.gather(*(ask(sampler, prompt, params) for prompt in prompts))

    for prompt, answer in zip(prompts, answers, strict=True):
        ids = torch.tensor([prompt])
        generated = reference.model.generate(  # type: ignore[operator]  # torch types a module's attributes as tensors
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=20, do_sample=False, pad_token_id=0
        )
        assert answer.ids == generated[0, len(prompt) :].tolist()


async def test_an_answer_depends_on_its_seed_and_not_on_its_company(sampler: TorchSampler) -> None:
    prompt = long_prompt()
    alone = await ask(sampler, prompt, endless(seed=5))

    crowd = await asyncio.gather(
        *(ask(sampler, long_prompt(9 + i, seed=i), endless(4 * i + 1, seed=i)) for i in range(6)),
        ask(sampler, prompt, endless(seed=5)),
        ask(sampler, prompt, endless(seed=6)),
    )

    assert crowd[-2].ids == alone.ids
    assert crowd[-1].ids != alone.ids


async def test_choices_use_the_seeds_after_the_first(sampler: TorchSampler) -> None:
    choices = await ask_many(sampler, SampleRequest(long_prompt(), endless(seed=20), choices=6))
    alone = [await ask(sampler, long_prompt(), endless(seed=20 + i)) for i in range(6)]

    assert [choice.ids for choice in choices] == [answer.ids for answer in alone]


async def test_without_a_seed_answers_differ_and_the_samplers_seed_repeats_them(loaded: LoadedModel) -> None:
    async def two_answers(seed: int) -> list[list[int]]:
        sampler = TorchSampler(loaded, threads=1, seed=seed)
        answers = [await ask(sampler, long_prompt(), endless(seed=None)) for _ in range(2)]
        await sampler.close()
        return [answer.ids for answer in answers]

    first = await two_answers(7)

    assert first[0] != first[1]
    assert await two_answers(7) == first
    assert await two_answers(8) != first


async def test_a_groups_prompt_is_computed_once(sampler: TorchSampler) -> None:
    prompt = long_prompt(40)

    await ask_many(sampler, SampleRequest(prompt, endless(1), choices=4))

    assert sampler.prefilled_tokens == 40


async def test_a_second_call_computes_only_what_is_new(sampler: TorchSampler) -> None:
    first = await ask(sampler, long_prompt(40), endless(25))
    before = sampler.prefilled_tokens
    longer = [*first.prompt, *first.ids, *long_prompt(10)]

    await ask(sampler, longer, endless(1))

    known = (len(first.prompt) + len(first.ids) - 1) // BLOCK * BLOCK
    assert sampler.prefilled_tokens - before == len(longer) - known


async def test_text_is_the_ids_decoded_without_special_tokens(sampler: TorchSampler, loaded: LoadedModel) -> None:
    answers = await ask_many(sampler, SampleRequest(long_prompt(), endless(30), choices=8))
    for answer in answers:
        assert answer.text == loaded.chat_format.decode(answer.ids, skip_special=True)


async def test_the_end_token_ends_an_answer_and_stays_in_its_ids_but_not_in_its_text(
    sampler: TorchSampler, loaded: LoadedModel
) -> None:
    answers = await ask_many(sampler, SampleRequest(long_prompt(8), SamplingParams(max_tokens=400, seed=0), choices=8))

    ended = [answer for answer in answers if answer.reason == "stop"]
    assert ended
    for answer in ended:
        assert answer.ids.index(END) == len(answer.ids) - 1
        assert answer.text == loaded.chat_format.decode(answer.ids[:-1], skip_special=True)


async def test_a_stop_string_ends_an_answer_and_only_its_ids_stay(sampler: TorchSampler, loaded: LoadedModel) -> None:
    free = await ask(sampler, long_prompt(), SamplingParams(temperature=0, max_tokens=30))
    stop = loaded.chat_format.decode(free.ids[5:7])

    stopped = await ask(sampler, long_prompt(), SamplingParams(temperature=0, max_tokens=30, stop=("no such", stop)))

    assert stopped.reason == "stop"
    assert stopped.ids == free.ids[: len(stopped.ids)]
    assert stopped.text == free.text[: free.text.index(stop)]
    assert loaded.chat_format.decode(stopped.ids, skip_special=True).endswith(stop)


async def test_top_k_one_is_greedy_with_certainty(sampler: TorchSampler) -> None:
    greedy = await ask(sampler, long_prompt(), SamplingParams(temperature=0, max_tokens=8))
    certain = await ask(sampler, long_prompt(), SamplingParams(top_k=1, max_tokens=8))

    assert certain.ids == greedy.ids
    assert certain.logprobs == pytest.approx([0.0] * len(certain.ids), abs=1e-6)


async def test_alternatives_are_reported_when_asked_for(sampler: TorchSampler) -> None:
    request = SampleRequest(long_prompt(), SamplingParams(temperature=0, max_tokens=3), top_logprobs=3)
    deltas = [delta async for delta in sampler.sample(request)]

    for delta in deltas:
        (alternatives,) = delta.top_logprobs
        assert len(alternatives) == 3
        assert alternatives[0][0] == delta.token_ids[0]
        assert alternatives[0][1] == pytest.approx(delta.logprobs[0], abs=1e-6)
        assert [p for _, p in alternatives] == sorted((p for _, p in alternatives), reverse=True)


async def test_an_answer_ends_where_the_context_does(sampler: TorchSampler) -> None:
    prompt = long_prompt(sampler.context_length - 3)
    answer = await ask(sampler, prompt, SamplingParams(temperature=0, max_tokens=50))

    assert len(answer.ids) == 3
    assert answer.reason == "length"


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (SampleRequest((), endless()), "empty"),
        (SampleRequest((5,) * 512, endless()), "no room in the model's context of 512"),
        (SampleRequest((5, 259), endless()), "token ids the model does not have"),
        (SampleRequest((-1,), endless()), "token ids the model does not have"),
        (
            SampleRequest((5,), SamplingParams(temperature=-1, top_p=0, top_k=-1, max_tokens=0)),
            "temperature.*top_p.*top_k.*max",
        ),
        (SampleRequest((5,), SamplingParams(temperature=float("nan"))), "temperature"),
        (SampleRequest((5,), SamplingParams(temperature=float("inf"))), "temperature"),
        (SampleRequest((5,), endless(), choices=0), "choices"),
    ],
)
async def test_what_cannot_be_drawn_is_refused(sampler: TorchSampler, request_: SampleRequest, reason: str) -> None:
    with pytest.raises(BackendError, match=reason):
        await ask_many(sampler, request_)


async def test_closing_the_iterator_makes_room_for_others(sampler: TorchSampler) -> None:
    endless_request = SampleRequest(long_prompt(4), SamplingParams(max_tokens=500, top_k=1), choices=4)
    async with aclosing(sampler.sample(endless_request)) as deltas:
        await anext(deltas)
        waiting = asyncio.create_task(ask(sampler, long_prompt(), endless(3)))

    answer = await waiting

    assert len(answer.ids) == 3
    await ask(sampler, long_prompt(), endless(1))
    assert not sampler._decoder.busy


async def test_many_event_loops_share_one_sampler(sampler: TorchSampler, reference: LoadedModel) -> None:
    answers: dict[int, list[Answer]] = {}

    def agent(index: int) -> None:
        async def calls() -> list[Answer]:
            return [await ask(sampler, long_prompt(20 + index, seed=n), endless(6, seed=index)) for n in range(3)]

        answers[index] = asyncio.run(calls())

    threads = [threading.Thread(target=agent, args=(index,)) for index in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        await asyncio.to_thread(thread.join)

    assert sorted(answers) == list(range(6))
    for answer in itertools.chain.from_iterable(answers.values()):
        assert answer.logprobs == pytest.approx(teacher_forced(reference, answer), abs=1e-4)


class Gate:
    """Holds each of the sampler's forward passes until a test lets it go, so that the test decides how far it gets."""

    def __init__(self) -> None:
        self.arrived = threading.Semaphore(0)
        """One for each forward pass that has begun."""
        self._passes = threading.Semaphore(0)

    def hold(self) -> None:
        """Called by each forward pass."""
        self.arrived.release()
        self._passes.acquire()

    def let_go(self, passes: int = 10_000) -> None:
        """Lets so many forward passes go on."""
        self._passes.release(passes)


@pytest.fixture
def gate(loaded: LoadedModel, sampler: TorchSampler) -> Iterator[Gate]:
    gate = Gate()

    def before_forward(*_: object) -> None:
        if threading.current_thread() is sampler._worker:
            gate.hold()

    handle = loaded.model.register_forward_pre_hook(before_forward)
    yield gate
    handle.remove()
    gate.let_go()


async def test_a_pause_waits_for_the_step_in_flight_and_answers_go_on_with_the_new_weights(
    loaded: LoadedModel, reference: LoadedModel, sampler: TorchSampler, gate: Gate
) -> None:
    drawn = asyncio.create_task(ask(sampler, long_prompt(20), SamplingParams(max_tokens=6, seed=3)))
    gate.let_go(3)  # the prefill and the first three tokens; the fourth is in flight
    for _ in range(4):
        await asyncio.to_thread(gate.arrived.acquire)
    entered = asyncio.Event()

    async def train() -> None:
        async with sampler.paused():
            entered.set()
            with torch.no_grad():
                for weight in loaded.model.parameters():
                    weight.mul_(1.3)
            sampler.policy_version = 1

    training = asyncio.create_task(train())
    await asyncio.sleep(0)
    assert not entered.is_set()
    gate.let_go()
    answer = await drawn
    await training

    old = answer.versions.count(0)
    assert old == 4
    assert len(answer.ids) == 6
    assert answer.versions == [0] * old + [1] * (len(answer.ids) - old)
    assert answer.logprobs[:old] == pytest.approx(teacher_forced(reference, answer)[:old], abs=1e-4)
    assert answer.logprobs[old:] == pytest.approx(teacher_forced(loaded, answer)[old:], abs=1e-4)


async def test_nothing_is_computed_inside_a_pause_and_nested_pauses_add_up(sampler: TorchSampler) -> None:
    await ask(sampler, long_prompt(), endless(2))
    before = sampler.prefilled_tokens
    async with sampler.paused():
        async with sampler.paused():
            waiting = asyncio.create_task(ask(sampler, long_prompt(), endless(2)))
            await asyncio.sleep(0)
        assert len(sampler._pauses) == 1
        await asyncio.to_thread(lambda: None)
        assert sampler.prefilled_tokens == before

    answer = await waiting

    assert len(answer.ids) == 2
    assert sampler.prefilled_tokens == before + len(long_prompt())


async def test_a_pause_that_is_given_up_holds_nothing(sampler: TorchSampler, gate: Gate) -> None:
    drawn = asyncio.create_task(ask(sampler, long_prompt(), endless(2)))
    pausing = asyncio.create_task(sampler.paused().__aenter__())
    await asyncio.sleep(0)
    pausing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pausing
    gate.let_go()

    assert len((await drawn).ids) == 2


async def test_changed_weights_are_not_read_from_the_prefix_cache(loaded: LoadedModel, sampler: TorchSampler) -> None:
    await ask(sampler, long_prompt(), endless(20))
    async with sampler.paused():
        with torch.no_grad():
            for weight in loaded.model.parameters():
                weight.mul_(1.3)
        sampler.policy_version = 1

    answer = await ask(sampler, long_prompt(), endless(20))

    assert set(answer.versions) == {1}
    assert answer.logprobs == pytest.approx(teacher_forced(loaded, answer), abs=1e-4)


async def test_a_failed_step_fails_the_answers_under_way_and_no_later_one(
    loaded: LoadedModel, sampler: TorchSampler
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("no room")

    handle = loaded.model.register_forward_pre_hook(fail)
    outcomes = await asyncio.gather(
        *(ask(sampler, long_prompt(seed=i), endless()) for i in range(6)), return_exceptions=True
    )
    handle.remove()

    assert all("MemoryError: no room" in str(outcome) for outcome in outcomes)
    assert all(isinstance(o, BackendError) and isinstance(o.__cause__, MemoryError) for o in outcomes)
    assert len((await ask(sampler, long_prompt(), endless(3))).ids) == 3


async def test_weights_that_are_no_numbers_are_said_so(loaded: LoadedModel, sampler: TorchSampler) -> None:
    async with sampler.paused():
        with torch.no_grad():
            next(loaded.model.parameters()).fill_(float("nan"))

    with pytest.raises(BackendError, match="logits are not finite"):
        await ask(sampler, long_prompt(), endless())


async def test_closing_fails_what_is_open_and_refuses_what_comes_after(sampler: TorchSampler, gate: Gate) -> None:
    open_request = asyncio.create_task(ask(sampler, long_prompt(), endless(100)))
    await asyncio.sleep(0)
    closing = asyncio.create_task(sampler.close())
    await asyncio.sleep(0)
    gate.let_go()

    with pytest.raises(BackendError, match="closed before"):
        await open_request
    await closing
    await sampler.close()
    with pytest.raises(BackendError, match="closed"):
        await ask(sampler, long_prompt(), endless())
    with pytest.raises(BackendError, match="closed"):
        async with sampler.paused():
            pass


@pytest.mark.model
async def test_the_real_model_reports_exact_logprobs_in_a_mixed_batch() -> None:
    loaded = load_model("smollm2-135m")
    sampler = TorchSampler(loaded, max_rows=4, threads=1)
    questions = [
        "What is the capital of France?",
        "Tell me a joke.",
        "Count to ten.",
        "What is 2+2?",
        "Who are you?",
        "Sing!",
    ]
    prompts = [loaded.chat_format.render([{"role": "user", "content": q}]) for q in questions]
    kinds = [
        SamplingParams(temperature=t, max_tokens=n, seed=1)
        for t, n in ((0, 20), (1, 7), (0.7, 12), (1, 16), (1, 3), (1, 9))
    ]

    answers = await asyncio.gather(*map(ask, [sampler] * 6, prompts, kinds))
    more = (*prompts[1], *answers[1].ids, *prompts[3])
    answers.append(await ask(sampler, more, SamplingParams(max_tokens=6, seed=2)))
    await sampler.close()

    assert answers[0].text == "The capital of France is Paris."
    assert answers[0].reason == "stop"
    for answer in answers:
        assert answer.logprobs == pytest.approx(teacher_forced(loaded, answer), abs=1e-4)
