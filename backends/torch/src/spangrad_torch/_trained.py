"""The weights that are trained, with what belongs to their training: optimisers, value head, frozen reference."""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import PreTrainedModel

from spangrad.backend import CriticSettings
from spangrad_torch._adapters import choose_trained, describe_training
from spangrad_torch._checkpoint import LearnerState
from spangrad_torch._optimizer import Optimizer
from spangrad_torch._options import TorchOptions
from spangrad_torch._reference import FrozenReference
from spangrad_torch._value_head import ValueHead


class Trained:
    """All that a learner changes, and a checkpoint keeps.

    Args:
        model: adapters are put into it in place.
        options: the adapter, and the optimisers' options.
        seed: of the adapters' first weights.

    Raises:
        BackendError: the adapter's target layers are not in the model.
    """

    def __init__(self, model: PreTrainedModel, options: TorchOptions, *, seed: int) -> None:
        self._model = model
        self._options = options
        self.weights = choose_trained(model, options.adapter_options, seed=seed)
        """By name."""
        self.description = describe_training(model, self.weights, options.adapter_options)
        self._policy = Optimizer(self.weights, options)
        self.reference: FrozenReference | None = None
        self._head: ValueHead | None = None
        self._value: Optimizer | None = None

    @property
    def value_head(self) -> ValueHead:
        """Made when it is first asked for: a run without values has none."""
        if self._head is None:
            self._head = ValueHead.of(self._model)
            self._value = Optimizer(dict(self._head.named_parameters()), self._options)
        return self._head

    def restart_optimizer(self) -> None:
        """Forgets the moments of the policy; the value head never learns anything but values."""
        self._policy.restart()

    def freeze_reference(self) -> None:
        """Takes the present weights as the reference."""
        self.reference = FrozenReference.of(self.weights)

    def take_gradient(self) -> dict[str, Tensor]:
        """What was accumulated for the policy, by weight, which then is forgotten."""
        found = {name: weight.grad for name, weight in self.weights.items() if weight.grad is not None}
        self.drop_gradient()
        return found

    def drop_gradient(self) -> None:
        """Forgets what was accumulated."""
        for optimizer in self._optimizers:
            optimizer.drop_gradient()

    def step(self, learning_rate: float, critic: CriticSettings | None) -> float:
        """One step with the accumulated gradient, which is used up.

        Args:
            learning_rate: of the policy.
            critic: how the value head learns; None where no value was in the loss.

        Returns:
            The norm of the policy's gradient before it was bounded.

        Raises:
            BackendError: a gradient is not finite; no step was taken.
        """
        try:
            norm, *_ = [optimizer.bound_gradient(critic) for optimizer in self._optimizers]
            self._policy.step(learning_rate)
            if self._value is not None and critic is not None:
                self._value.step(critic.learning_rate)
        finally:
            self.drop_gradient()
        return norm

    def state(self, policy_version: int) -> LearnerState:
        """All that belongs in a checkpoint; not copied."""
        return LearnerState(
            weights={name: weight.detach() for name, weight in self.weights.items()},
            optimizer=self._policy.state(),
            reference=None if self.reference is None else self.reference.weights,
            random=torch.get_rng_state(),
            policy_version=policy_version,
            steps=self._policy.steps,
            training=self.description,
            value_head=None if self._head is None else dict(self._head.state_dict()),
            value_optimizer={} if self._value is None else self._value.state(),
        )

    @torch.no_grad()
    def restore(self, state: LearnerState) -> None:
        """Takes over a state whose names and shapes are ours."""
        for name, weight in self.weights.items():
            weight.copy_(state.weights[name])
        self._policy.restore(state.optimizer, state.steps)
        device = self._model.device
        self.reference = (
            None if state.reference is None else FrozenReference({n: w.to(device) for n, w in state.reference.items()})
        )
        self._head = self._value = None
        if state.value_head is not None:
            self.value_head.load_state_dict(dict(state.value_head))
            self._optimizers[-1].restore(state.value_optimizer, 0)
        torch.set_rng_state(state.random)

    @property
    def _optimizers(self) -> list[Optimizer]:
        """The policy's, and the value head's if there is one."""
        return [self._policy] if self._value is None else [self._policy, self._value]
