"""Connectionist temporal classification without a wait for the device, so that it can be part of a captured graph.

The states of a text are its characters with blanks around them. alpha[s] is the log-probability of all ways that have reached
state s after the steps so far; a way may stay, go one state on, or jump over a blank between two different characters.
"""

import torch
import torch.nn.functional as F

NEVER = -1e4  # log-probability of what cannot be; infinities would make gradients undefined


def ctc_loss(steps: torch.Tensor, targets: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    """Mean over samples of -log p(text) / characters; texts that the steps have no room for count as 0.

    steps [steps, batch, classes] log-probabilities, class 0 the blank; targets [batch, characters]; lengths [batch].
    """
    batch, most = targets.shape
    states = torch.zeros(batch, 2 * most + 1, dtype=torch.long, device=targets.device)
    states[:, 1::2] = targets
    jumps = torch.full(states.shape, NEVER, device=steps.device)
    jumps[:, 3::2] = torch.where(targets[:, 1:] != targets[:, :-1], 0.0, NEVER)
    said = steps.gather(2, states.expand(len(steps), -1, -1))  # [steps, batch, states]
    alpha = F.pad(said[0, :, :2], (0, states.shape[1] - 2), value=NEVER)
    for step in said[1:]:
        ways = (alpha, F.pad(alpha[:, :-1], (1, 0), value=NEVER), F.pad(alpha[:, :-2], (2, 0), value=NEVER) + jumps)
        alpha = torch.stack(ways).logsumexp(0) + step
    ends = torch.stack((2 * lengths - 1, 2 * lengths), 1)
    loss = -alpha.gather(1, ends).logsumexp(1)
    return torch.where(loss < -NEVER / 2, loss / lengths, 0.0).mean()
