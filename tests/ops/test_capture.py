"""Capture of CUDA graphs: graphs of two captures run side by side, as the tower's do beside those of steps."""

import pytest
import torch

from sightline.ops.capture import capture_cuda_graphs

pytestmark = pytest.mark.gpu


def test_captures_share_no_stream() -> None:
    """cuBLAS has a workspace for each stream, which graphs remember. Red when two captures capture on the same stream: graphs
    that run side by side would write to one workspace."""
    device, streams = torch.device("cuda"), []
    for _ in range(2):
        capture, seen = capture_cuda_graphs(device), set()

        def run(seen: set[int] = seen) -> torch.Tensor:
            seen.add(torch.cuda.current_stream(device).cuda_stream)
            return torch.ones(3, device=device)

        for _ in range(2):
            replay, out = capture(run)
            out.zero_()
            replay()
            assert out.tolist() == [1, 1, 1]
        streams.append(seen)
    assert len(streams[0]) == len(streams[1]) == 1 and not streams[0] & streams[1]


@torch.inference_mode()
def test_products_of_two_captures_side_by_side() -> None:
    """Long sums of a small M, which cuBLAS splits and joins in its workspace. Red when one capture's graphs spoil another's."""
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)
    a = [torch.randn(16, 16384, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(2)]
    b = [torch.randn(16384, 64, generator=generator, device=device, dtype=torch.bfloat16) for _ in range(2)]

    def products(which: int) -> torch.Tensor:
        return torch.stack([a[which] @ b[which] for _ in range(50)])

    graphs = [capture_cuda_graphs(device)(lambda which=which: products(which)) for which in range(2)]
    for replay, _ in graphs:
        replay()
    torch.cuda.synchronize()
    expected = [out.clone() for _, out in graphs]
    streams = [torch.cuda.Stream(device) for _ in graphs]
    torch.cuda.synchronize()
    for _ in range(20):
        for (replay, _), stream in zip(graphs, streams, strict=True):
            with torch.cuda.stream(stream):
                replay()
        torch.cuda.synchronize()
        for (_, out), right in zip(graphs, expected, strict=True):
            assert torch.equal(out, right)
