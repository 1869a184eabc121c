"""A mixture of experts as the MLP of a layer: a router, and the gated MLPs that it chooses from."""

import torch
from torch import nn

from sightline.models.linear import StackedLinear
from sightline.ops.experts import expert_down, expert_gate_up, group_pairs, needs_lists, route_tokens, sum_expert_outputs
from sightline.ops.linear import linear, linear_to_float32
from sightline.ops.workspace import Workspace
from sightline.spec import ExpertsSpec


def active_parameters(decoder: nn.Module) -> int:
    """Those that a token passes through: of experts the chosen ones and the shared one. Without the table of embeddings."""
    table = decoder.get_submodule("embed_tokens")
    idle = sum(module.idle_parameters for module in decoder.modules() if isinstance(module, Experts))
    return sum(p.numel() for p in decoder.parameters()) - sum(p.numel() for p in table.parameters()) - idle


def route_uniformly(decoder: nn.Module, most_tokens: int, seed: int) -> None:
    """Random logits in place of the routers', so that tokens go to all experts alike; others for each layer and token.

    Of random weights only: they send nearly all tokens to the same few experts, and steps then read less than they would.
    The product with the router's matrix is still made, and takes its time.
    """
    routers = [module for module in decoder.modules() if isinstance(module, Router)]
    if not routers:
        return
    weight = routers[0].weight
    dtype = torch.float32 if routers[0].spec.routed_in_float32 else weight.dtype
    generator = torch.Generator().manual_seed(seed)
    table = torch.randn(most_tokens + len(routers), len(weight), generator=generator).to(weight.device, dtype)
    for layer, router in enumerate(routers):
        router.instead = table[layer : layer + most_tokens]


class Router(nn.Module):
    """Which experts a token goes to. Never in 8-bit floats: a small error here sends tokens elsewhere."""

    def __init__(self, spec: ExpertsSpec, size: int) -> None:
        super().__init__()
        self.spec = spec
        self.weight = nn.Parameter(torch.empty(spec.count + (spec.shared_expert == "gated"), size))
        self.bias: nn.Parameter | None
        self.register_parameter(
            "bias", nn.Parameter(torch.empty(spec.count, dtype=torch.float32)) if spec.scores == "sigmoid" else None
        )
        self.workspace: Workspace | None = None
        self.instead: torch.Tensor | None = None  # [tokens, rows of weight]: logits that are taken in place of the product

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """(experts, weights) of each token, as `route_tokens` gives them."""
        spec, logits = self.spec, self.logits(x)
        if self.instead is not None:
            logits = self.instead[: len(x)]
        return route_tokens(
            logits, self.bias, spec.chosen, spec.scores, spec.scale, spec.shared_expert, spec.held, spec.shared_count,
            spec.normalised, spec.groups,
        )  # fmt: skip

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """[tokens, rows of weight], in x's dtype, or in float32 where routing is."""
        if self.spec.routed_in_float32:
            return linear_to_float32(x, self.weight)
        return linear(x, self.weight, None, self.workspace)


class Experts(nn.Module):
    """Shared experts, which every token goes to, are the last ones of the stacks."""

    def __init__(self, spec: ExpertsSpec, size: int) -> None:
        super().__init__()
        count = spec.matrices if spec.held is None else spec.held[1]
        self.router = Router(spec, size)
        self.gate_up = StackedLinear(count, size, 2 * spec.intermediate_size, "column")
        self.down = StackedLinear(count, spec.intermediate_size, size, "row")

    @property
    def idle_parameters(self) -> int:
        """Of the experts that a token is not sent to."""
        spec = self.router.spec
        each = self.gate_up.weight[0].numel() + self.down.weight[0].numel()
        return (spec.count - spec.chosen) * each

    @property
    def graph_safe(self) -> bool:
        """Whether kernels run it: the definitions ask on the host where tokens go."""
        x, spec = self.router.weight[:1], self.router.spec
        experts = torch.empty(1, spec.chosen, dtype=torch.int32, device=x.device)
        return expert_gate_up.choose(x, experts, None, self.gate_up.weight, self.gate_up.weight_scale).graph_safe

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out = sum_expert_outputs(*self._outputs(x, None))
        return out if self.down.group is None else self.down.group.all_reduce_(out)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """residual + self(x), in the memory of `residual`."""
        if self.down.group is None:
            return sum_expert_outputs(*self._outputs(x, residual))
        return residual.add_(self(x))

    def _outputs(
        self, x: torch.Tensor, residual: torch.Tensor | None
    ) -> tuple[torch.Tensor, torch.Tensor | None, torch.Tensor | None]:
        """What `sum_expert_outputs` takes."""
        experts, weights = self.router(x)
        gate_up, down = self.gate_up, self.down
        count = len(down.weight)
        lists = group_pairs(experts, count) if needs_lists(experts, count) else None
        between = expert_gate_up(x, experts, lists, gate_up.weight, gate_up.weight_scale)
        outputs = expert_down(between, experts, lists, down.weight, down.weight_scale, weights)
        return outputs, residual, None if self.router.spec.held is None else experts
