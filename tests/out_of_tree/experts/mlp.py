"""The MLP of the experts family: each token goes to a few of many small gated MLPs, whose answers are weighed."""

import torch
from torch import nn
from torch.nn import functional as F

from sightline.models.linear import Linear

from . import ExpertsSpec


class Experts(nn.Module):
    graph_safe = False  # it asks on the host which tokens go where

    def __init__(self, spec: ExpertsSpec) -> None:
        super().__init__()
        self.spec = spec
        self.router = Linear(spec.hidden_size, spec.experts, False)
        self.gate_up = nn.Parameter(torch.empty(spec.experts, 2 * spec.intermediate_size, spec.hidden_size))
        self.down = nn.Parameter(torch.empty(spec.experts, spec.hidden_size, spec.intermediate_size))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = self.router(x).float().softmax(-1).topk(self.spec.chosen, dim=-1)
        weights = weights / weights.sum(-1, keepdim=True)
        out = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for expert in range(self.spec.experts):
            tokens, rank = (chosen == expert).nonzero(as_tuple=True)
            gate, up = F.linear(x[tokens], self.gate_up[expert]).chunk(2, dim=-1)
            answer = F.linear(F.silu(gate) * up, self.down[expert])
            out.index_add_(0, tokens, weights[tokens, rank, None] * answer.float())
        return out.to(x.dtype)

    def add_to(self, residual: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return residual.add_(self(x))
