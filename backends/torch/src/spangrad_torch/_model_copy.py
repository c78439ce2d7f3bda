"""A further model for a further policy: on the very weights of the first, or on weights of its own."""

from __future__ import annotations

import copy
from dataclasses import replace

from spangrad_torch._model import LoadedModel


def copied(loaded: LoadedModel, *, share_weights: bool) -> LoadedModel:
    """The same model as another object: layers put into the one are not in the other.

    Args:
        loaded: the model, before adapters are put into it.
        share_weights: let the copy read the weights of the first. It then costs next to no memory, and what changes the
            weights of the one changes the other; so this is for models whose own weights are frozen.
    """
    tensors = [*loaded.model.parameters(), *loaded.model.buffers()] if share_weights else []
    # deepcopy takes what the memo says for the copy of an object.
    return replace(loaded, model=copy.deepcopy(loaded.model, {id(tensor): tensor for tensor in tensors}))
