"""The way through transformers' modules that training takes gives what transformers gives. Red when the two drift apart."""

import sys
from pathlib import Path

import pytest
import torch

from oracle import oracle

sys.path.insert(0, str(Path(__file__).parents[2] / "training"))

from fast_forward import Layout, hidden_states


@pytest.mark.parametrize("items", [1, 2])
def test_logits_equal_transformers(tiny_checkpoints: dict[str, Path], items: int) -> None:
    folder = tiny_checkpoints["qwen3-vl"]
    model = oracle(folder, "qwen3-vl").model
    config, torch_seed = model.config, torch.manual_seed(0)
    assert torch_seed is not None
    batch, grid, rows = 3, (1, 4, 6), 6
    pixels = torch.randn(batch * items, 24, 3 * 2 * 16 * 16)
    start, end = config.vision_start_token_id, config.vision_end_token_id
    ids, spans = [5, 6], []
    for _ in range(items):
        spans.append((len(ids) + 1, rows))
        ids += [start, *[config.image_token_id] * rows, end]
    token_ids = torch.tensor([[*ids, 10 + row, 20 + row, 30] for row in range(batch)])
    grids = torch.tensor([grid] * (batch * items))
    types = (token_ids == config.image_token_id).int()
    with torch.inference_mode():
        expected = model(
            input_ids=token_ids,
            attention_mask=torch.ones_like(token_ids),
            pixel_values=pixels.flatten(0, 1),
            image_grid_thw=grids,
            mm_token_type_ids=types,
        ).logits
        positions, _ = model.model.get_rope_index(token_ids[:1], types[:1], image_grid_thw=grids[:items])
        states, hidden = hidden_states(model, pixels, token_ids, positions[:, 0], Layout(grid, items, tuple(spans)))
        found = model.lm_head(states)
    assert hidden.shape == (batch * items, 24, config.vision_config.hidden_size)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
