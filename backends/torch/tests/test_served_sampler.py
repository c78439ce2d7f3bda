"""A sampler of servers beside the learner: chosen by name, given the learner's weights in folders, closed with the backend."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
from peft import PeftModel
from pydantic import BaseModel, ConfigDict, ValidationError
from transformers import AutoModelForCausalLM, AutoTokenizer

from spangrad.backend import (
    Backend,
    SampleDelta,
    Sampler,
    SampleRequest,
    SamplingParams,
    Served,
    ServedModel,
    UpdateBatch,
)
from spangrad.errors import BackendError
from spangrad.transitions import Transition, TransitionBatch
from spangrad_torch import TorchBackend, TorchOptions
from spangrad_torch.plugin import TorchFactory

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing`:FutureWarning"
)  # peft 0.21 with transformers 5.24

PROMPT = (1, 40, 41, 42)
FAST: dict[str, Any] = {"precision": "fp32", "train_threads": 1}
LORA: dict[str, Any] = {"adapter": "lora", "lora": {"rank": 4}}
NAMES = ("writer", "rewriter")
GREEDY = SampleRequest(PROMPT, SamplingParams(temperature=0.0, max_tokens=6), top_logprobs=2)


class Reloaded:
    """A policy's weights as whoever reads the folders has them: transformers and peft, and nothing of the learner."""

    def __init__(self, model: ServedModel) -> None:
        self._base = model
        self.policy_version = 0
        self.taken: list[Path] = []
        self._backend = own(model.folder)

    @property
    def context_length(self) -> int:
        return 256

    async def sample(self, request: SampleRequest) -> AsyncGenerator[SampleDelta, None]:
        sampler = self._backend.policies["policy"].sampler
        async for delta in sampler.sample(request):
            yield SampleDelta(**{**vars_of(delta), "policy_version": self.policy_version})

    async def take(self, folder: Path, version: int) -> None:
        assert all(not before.exists() for before in self.taken[:-1])  # only what is drawn with is kept
        await self._backend.close()
        whole = folder
        if self._base.adapter_rank is not None:
            base = AutoModelForCausalLM.from_pretrained(self._base.folder)
            whole = self._base.handover / f"whole-{folder.name}"
            PeftModel.from_pretrained(base, str(folder)).merge_and_unload().save_pretrained(whole)
            AutoTokenizer.from_pretrained(self._base.folder).save_pretrained(whole)
        self._backend = own(whole)
        self.taken.append(folder)
        self.policy_version = version

    async def close(self) -> None:
        await self._backend.close()


class Servers:
    """Implements `spangrad.backend.SamplerFactory` and `Served`."""

    class Options(BaseModel):
        model_config = ConfigDict(extra="forbid")
        count: int = 1

    def __init__(self) -> None:
        self.lacking: BackendError | None = None
        self.closed = 0

    def check(self, options: Mapping[str, Any]) -> Mapping[str, Any]:
        return self.Options.model_validate(options).model_dump()

    def require(self, options: Mapping[str, Any]) -> None:
        self.required = options
        if self.lacking is not None:
            raise self.lacking

    def start(self, options: Mapping[str, Any], model: ServedModel) -> Served:
        self.started, self.model = options, model
        self.policies = {name: Reloaded(model) for name in model.policies}
        self.initial = Reloaded(model) if model.initial else None
        return cast("Served", self)

    def describe(self) -> Mapping[str, Any]:
        return {"servers": ["here"]}

    async def close(self) -> None:
        self.closed += 1
        for policy in (*self.policies.values(), *filter(None, [self.initial])):
            await policy.close()


def vars_of(delta: SampleDelta) -> dict[str, Any]:
    return {name: getattr(delta, name) for name in delta.__dataclass_fields__}


def own(folder: Path, **more: Any) -> TorchBackend:
    """A backend that draws itself."""
    options = TorchOptions.model_validate(
        {"model": str(folder), "decode_threads": 1, **FAST, **more.pop("options", {})}
    )
    return TorchBackend.load(options, seed=3, **more)


def batch(policy: str) -> UpdateBatch:
    transition = Transition(
        "r", 1, "g", "c", 0, 0, None, policy, 0, PROMPT, (50, 51, 2), (-1.0,) * 3, 1.0, 1.0, 0, None, 1.0
    )
    return UpdateBatch(TransitionBatch((transition,)), 1e-2, np.ones(1), np.full(1, 1 / 3))


async def drawn(sampler: Sampler) -> list[SampleDelta]:
    return [delta async for delta in sampler.sample(GREEDY)]


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Servers:
    """The plug-in `servers`."""
    made = Servers()
    plugins = SimpleNamespace(samplers={"servers": made})
    monkeypatch.setattr("spangrad_torch._sampler_choice.load_plugins", lambda **_: plugins)
    return made


def create(folder: Path, table: Mapping[str, Any], **more: Any) -> Backend:
    options = {"model": str(folder), "sampler": "servers", "servers": table, **FAST, **more.pop("options", {})}
    return TorchFactory().create(options, seed=3, **more)


@pytest.mark.parametrize("options", [LORA, {}], ids=["lora", "full"])
async def test_servers_draw_with_the_weights_that_were_published_last(
    tiny_model_folder: Path, servers: Servers, options: Mapping[str, Any]
) -> None:
    served = create(tiny_model_folder, {}, options=options, policies=NAMES, initial=True)
    shared = own(tiny_model_folder, options=options, policies=NAMES, initial=True)
    try:
        for name in ("writer", "rewriter", "writer"):
            for backend in (shared, served):
                await backend.policies[name].learner.update(batch(name))
            before = await drawn(served.policies[name].sampler)
            assert await served.policies[name].learner.publish() == served.policies[name].version
            await shared.policies[name].learner.publish()
            assert await drawn(served.policies[name].sampler) != before
            for other in NAMES:
                ours = await drawn(shared.policies[other].sampler)
                theirs = await drawn(served.policies[other].sampler)
                assert [delta.token_ids for delta in theirs] == [delta.token_ids for delta in ours]
                for one, another in zip(ours, theirs, strict=True):
                    assert another.logprobs == pytest.approx(one.logprobs, abs=1e-4)
                    assert another.policy_version == one.policy_version
        assert served.initial is not None
        assert shared.initial is not None
        assert await drawn(served.initial) == await drawn(shared.initial)
        assert served.policies["writer"].sampler.context_length == 256
    finally:
        await served.close()
        await shared.close()
    assert servers.closed == 1
    assert not servers.model.handover.exists()
    assert servers.model.adapter_rank == (4 if options else None)


async def test_weights_that_have_not_changed_are_not_handed_over(tiny_model_folder: Path, servers: Servers) -> None:
    backend = create(tiny_model_folder, {})
    policy = backend.policies["policy"]
    await policy.learner.publish()
    await policy.learner.update(batch("policy"))
    await policy.learner.publish()
    await policy.learner.publish()
    assert [folder.name for folder in servers.policies["policy"].taken] == ["policy-1"]
    await backend.close()


async def test_a_loaded_checkpoint_is_handed_over(tiny_model_folder: Path, servers: Servers, tmp_path: Path) -> None:
    backend = create(tiny_model_folder, {}, options=LORA)
    policy = backend.policies["policy"]
    await policy.learner.update(batch("policy"))
    await policy.learner.publish()
    saved = [delta.logprobs for delta in await drawn(policy.sampler)]
    await policy.learner.save(tmp_path / "saved")
    await policy.learner.update(batch("policy"))
    await policy.learner.publish()
    assert [delta.logprobs for delta in await drawn(policy.sampler)] != saved
    await policy.learner.load(tmp_path / "saved")
    assert [delta.logprobs for delta in await drawn(policy.sampler)] == [pytest.approx(part) for part in saved]
    await backend.close()
    assert len(servers.policies["policy"].taken) == 3


class TestOptions:
    def test_the_servers_table_is_filled_in_within_the_backends(self, servers: Servers) -> None:
        assert TorchFactory().check({"sampler": "servers"})["servers"] == {"count": 1}
        filled = TorchFactory().check({"sampler": "servers", "servers": {"count": 2}})
        assert filled["servers"] == {"count": 2}
        assert not {"decode_threads", "max_rows", "prefix_cache_mb"} & set(filled)
        assert TorchFactory().check(filled) == filled
        assert not hasattr(servers, "required")

    @pytest.mark.usefixtures("servers")
    def test_all_that_is_wrong_is_said_at_once_with_its_place(self) -> None:
        with pytest.raises(ValidationError) as caught:
            TorchFactory().check({"sampler": "servers", "servers": {"cuont": 2}, "max_grad_norm": 0, "max_rows": 3})
        told = {part["loc"]: part["msg"] for part in caught.value.errors()}
        assert set(told) == {("servers", "cuont"), ("max_grad_norm",)}

    @pytest.mark.usefixtures("servers")
    def test_settings_of_our_own_samplers_are_refused_beside_servers(self) -> None:
        with pytest.raises(ValidationError, match=r'max_rows would do nothing with sampler = "servers"'):
            TorchFactory().check({"sampler": "servers", "max_rows": 3})

    def test_a_sampler_that_nobody_brings_is_refused(self) -> None:
        with pytest.raises(ValidationError, match="Unknown sampler 'nobodys'"):
            TorchFactory().check({"sampler": "nobodys"})

    @pytest.mark.usefixtures("servers")
    def test_a_table_has_to_be_one(self) -> None:
        with pytest.raises(ValidationError, match="a table of the sampler's settings"):
            TorchFactory().check({"sampler": "servers", "servers": 3})

    def test_what_servers_lack_is_said_before_the_model_is_loaded(self, servers: Servers, tmp_path: Path) -> None:
        servers.lacking = BackendError("There is no such server", cure="Get one")
        with pytest.raises(BackendError, match="no such server"):
            create(tmp_path / "no model", {"count": 4})
        assert servers.required == {"count": 4}


async def test_servers_that_do_not_start_leave_no_folder(
    tiny_model_folder: Path, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[Path] = []

    def start(_: Mapping[str, Any], model: ServedModel) -> Served:
        seen.append(model.handover)
        raise BackendError("They do not start")

    monkeypatch.setattr(servers, "start", start)
    with pytest.raises(BackendError, match="They do not start"):
        create(tiny_model_folder, {})
    assert not seen[0].exists()
