"""Which experts tokens go to, in transformers and here: recorded, and forced to be those of another run.

A rounding error sends a token whose 8th and 9th expert score alike elsewhere, and its logits are then others. So sets are
compared first; what bfloat16 costs is compared with the sets of float32 forced on both.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import nn

from oracle import Oracle
from sightline.models.experts import Router
from sightline.models.model import VisionLanguageModel
from sightline.spec import ExpertsSpec

Chosen = list[torch.Tensor]  # for each layer with experts, [tokens, chosen]


def gates(reference: Oracle) -> list[nn.Module]:
    return [layer.mlp.gate for layer in reference.model.model.language_model.layers if hasattr(layer.mlp, "gate")]


def routers(model: VisionLanguageModel) -> list[Router]:
    return [module for module in model.text.modules() if isinstance(module, Router)]


@contextmanager
def recorded(modules: list[Any], place: int) -> Iterator[list[list[torch.Tensor]]]:
    """For each module what it puts out at `place`, a tensor for each call."""
    found: list[list[torch.Tensor]] = [[] for _ in modules]
    with ExitStack() as stack:
        for module, calls in zip(modules, found, strict=True):
            hook = module.register_forward_hook(lambda _, inputs, out, calls=calls: calls.append(out[place].cpu()))
            stack.callback(hook.remove)
        yield found


def joined(calls: list[list[torch.Tensor]]) -> Chosen:
    return [torch.cat(each) for each in calls]


def _weights(spec: ExpertsSpec, logits: torch.Tensor, chosen: torch.Tensor) -> torch.Tensor:
    wide = logits.float()
    scores = (wide.softmax(-1) if spec.scores == "softmax" else wide.sigmoid()).gather(1, chosen)
    return ((scores / scores.sum(1, keepdim=True) if spec.normalised else scores) * spec.scale).to(logits.dtype)


@contextmanager
def forced_theirs(reference: Oracle, spec: ExpertsSpec, wanted: Chosen) -> Iterator[None]:
    with ExitStack() as stack:
        for gate, chosen in zip(gates(reference), wanted, strict=True):

            def force(_: Any, inputs: Any, out: Any, chosen: torch.Tensor = chosen) -> Any:
                own = chosen.to(out[0].device)
                assert len(own) == len(out[0])
                return out[0], _weights(spec, out[0], own), own

            stack.callback(gate.register_forward_hook(force).remove)
        yield


@contextmanager
def forced_ours(model: VisionLanguageModel, wanted: Chosen) -> Iterator[None]:
    """Tokens come in as many calls as they like, in their order. What the router weighs with are its own scores."""
    with ExitStack() as stack:
        for router, chosen in zip(routers(model), wanted, strict=True):
            taken = [0]

            def force(
                module: Any, inputs: Any, out: Any, chosen: torch.Tensor = chosen, taken: list[int] = taken
            ) -> tuple[torch.Tensor, torch.Tensor]:
                count, spec = len(inputs[0]), module.spec
                own = chosen[taken[0] : taken[0] + count].to(out[0].device)
                taken[0] += count
                weights = _weights(spec, module.logits(inputs[0])[:, : spec.count], own).float()
                experts, found = out[0].clone(), out[1].clone()
                experts[:, : spec.chosen], found[:, : spec.chosen] = own.int(), weights
                return experts, found

            stack.callback(router.register_forward_hook(force).remove)
        yield
