"""Video, alone and between images.

transformers 5.17 is wrong on Qwen2.5-VL's positions and on Qwen3-VL's prompt, so ids and positions are checked by hand in
tests/prompt; here transformers computes with *our* ids, positions and patches, and rows, logits and tokens must be its own.
"""

from pathlib import Path
from typing import Any

import pytest
import torch

from clips import make_clip
from file_patches import make_patches
from oracle import Oracle, OracleEmbeddings
from parity.conversations import picture
from parity.subject import DEVICES, FAMILIES, TOLERANCE, Subject, both, check_bfloat16
from sightline.types import Request

pytestmark = [pytest.mark.parametrize("family", FAMILIES), pytest.mark.parametrize("device", DEVICES)]
GREEDY_TOKENS = 64


def _parts(*parts: Any) -> list[dict[str, Any]]:
    kinds = {str: "text", bytes: "video"}
    content = [{"type": kinds.get(type(part), "image"), kinds.get(type(part), "image"): part} for part in parts]
    return [{"role": "user", "content": content}]


CASES = {
    "even": _parts(make_clip(16), "What happens?"),
    "odd": _parts("Look: ", make_clip(10, fps=2, seed=1), " What?"),  # families keep 10 or sample fewer, see frame_indices
    "odd count of frames": _parts(make_clip(7, fps=2, seed=2), "?"),
    "one frame": _parts(make_clip(1, seed=3), "One?"),
    "between images": _parts(picture(120, 90, 1), make_clip(9, seed=4), picture(90, 120, 2), "All of it?"),
    "two videos": _parts(make_clip(8, seed=5), make_clip(8, width=64, height=128, seed=6), "Same?"),
}
every_case = pytest.mark.parametrize("name", CASES)


def _reference_rows(reference: Oracle, ours: Subject, request: Request) -> OracleEmbeddings:
    """transformers' tower on the full patches of each item, item by item."""
    processor = ours.llm.processor
    found = []
    for item in request.items:
        spec = processor.image if item.ref.kind == "image" else processor.video
        patches = make_patches(item, spec, torch.device(reference.device), torch.float32, compact=False)
        found.append(reference.rows(patches, torch.tensor([item.grid])))
    deepstack_features = [torch.cat(deepstack) for deepstack in zip(*(rows.deepstack_features for rows in found), strict=True)]
    return OracleEmbeddings(torch.cat([rows.main for rows in found]), deepstack_features)


@every_case
def test_rows_logits_and_tokens(tiny_checkpoints: dict[str, Path], family: str, device: str, name: str) -> None:
    reference, ours = both(tiny_checkpoints, family, device)
    request = ours.request(CASES[name])
    assert any(item.ref.kind == "video" for item in request.items)
    expected = _reference_rows(reference, ours, request)
    rows = ours.rows(request)
    assert rows is not None
    torch.testing.assert_close(rows, expected.joined, atol=TOLERANCE, rtol=0)
    logits = reference.logits_for_request(request, expected, [])
    torch.testing.assert_close(ours.logits(request), logits, atol=TOLERANCE, rtol=0)
    assert ours.greedy(request, GREEDY_TOKENS) == reference.greedy_for_request(request, expected, GREEDY_TOKENS)


@pytest.mark.parametrize("name", ["odd", "between images"])
def test_bfloat16(tiny_checkpoints: dict[str, Path], family: str, device: str, name: str) -> None:
    exact, exact_subject = both(tiny_checkpoints, family, device)
    rounded, ours = both(tiny_checkpoints, family, device, torch.bfloat16)
    request = ours.request(CASES[name])
    exact_rows, rounded_rows = (_reference_rows(reference, exact_subject, request) for reference in (exact, rounded))
    continuation = exact.greedy_for_request(request, exact_rows, GREEDY_TOKENS)
    check_bfloat16(exact, rounded, ours, request, exact_rows, rounded_rows, continuation)


def test_patches_equal_the_video_processor(tiny_checkpoints: dict[str, Path], family: str, device: str) -> None:
    """At a size that needs no resize, since transformers resizes video with torchvision and not as Pillow does."""
    reference, ours = both(tiny_checkpoints, family, device)
    side = 448  # a multiple of both factors, 28 and 32, and inside every family's pixel limits
    clip = make_clip(5, fps=2, width=side, height=side, seed=7)
    request = ours.request(_parts(clip, "?"))
    (item,) = request.items
    assert item.resized == (side, side)
    from sightline.media.decode import decode_video

    frames = torch.from_numpy(decode_video(item.ref, item.frame_indices)).permute(0, 3, 1, 2)
    theirs = reference.processor.video_processor(videos=[frames], do_sample_frames=False, return_tensors="pt")
    assert theirs["video_grid_thw"][0].tolist() == list(item.grid)
    patches = make_patches(item, ours.llm.processor.video, torch.device(device), torch.float32)
    torch.testing.assert_close(patches.cpu(), theirs["pixel_values_videos"].reshape(patches.shape), atol=2e-6, rtol=0)
