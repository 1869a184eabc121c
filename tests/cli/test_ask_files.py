"""`sightline ask` about PDFs and lists of frames, with the embedded model, in this process."""

import json
from importlib import resources
from pathlib import Path

import av
import pytest
from PIL import Image

from media.pdfs import encrypted, picture_pdf
from sightline.cli.main import main

DEMO = Path(str(resources.files("sightline.data"))) / "demo"
SAMPLES = {(*one["images"], *one["videos"]): one for one in json.loads((DEMO / "questions.json").read_text())}


def test_a_pdf(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample, path = SAMPLES[("sign.png",)], tmp_path / "sign.pdf"
    path.write_bytes(picture_pdf(Image.open(DEMO / "sign.png")))
    assert main(["ask", sample["question"], "--file", str(path), "--temperature", "0"]) == 0
    assert capsys.readouterr().out.strip() == sample["answer"]
    path.write_bytes(encrypted(b"secret"))
    assert main(["ask", sample["question"], "--file", str(path)]) == 1
    assert f"PDF {path} cannot be read: it is encrypted with a password." in capsys.readouterr().err


def test_frames(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sample, paths = SAMPLES[("video.mkv",)], []
    with av.open(str(DEMO / "video.mkv")) as container:
        step = round(float(container.streams.video[0].average_rate) / 2)
        for number, frame in enumerate(container.decode(video=0)):
            if number % step == 0:
                paths.append(str(tmp_path / f"{number}.png"))
                frame.to_image().save(paths[-1])
    asking = ["ask", sample["question"], "--frames", *paths, "--temperature", "0"]
    assert main([*asking, "--fps", "2"]) == 0
    assert capsys.readouterr().out.strip() == sample["answer"]
    assert main([*asking, "--max-frames", "1"]) == 1
    assert "max_frames is 1" in capsys.readouterr().err
