"""How long the device worked, asked before anybody has waited for it."""

import time

import pytest
import torch

from sightline.worker.device_timer import DeviceTimer


def test_a_block_on_the_cpu() -> None:
    with DeviceTimer(torch.device("cpu")) as timer:
        time.sleep(0.02)
    assert 0.02 <= timer.seconds < 10


@pytest.mark.gpu
def test_a_block_that_the_device_is_still_at() -> None:
    """Red when who asks at once gets an error: results can be ready a moment before the block's end is."""
    cycles = 50_000_000  # some 25 ms
    with DeviceTimer(torch.device("cuda")) as timer:
        torch.cuda._sleep(cycles)
    assert 0.005 < timer.seconds < 10
