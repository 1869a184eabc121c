"""What this machine has and what would run on it: each check adds facts to a report, and sentences on what is amiss.

A warning is what works, but slower or less than it could; a problem is what does not work.
"""

import importlib
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import metadata, resources
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import sightline
from sightline.config import MediaConfig
from sightline.processors import available_processors

Facts = dict[str, Any]  # name → a string, or a dict of strings by name
ROOT = Path(sightline.__file__).parent.parent
DISTRIBUTION = "sightline-vlm"  # the package's name for pip; `sightline` there is somebody else's
_VIDEO_CODECS = ("h264", "hevc", "vp9", "av1", "mpeg4")
DEFINITION = "torch definition"
_FEW_FILES = 4096  # open files; each connection is one


@dataclass
class Report:
    sections: dict[str, Facts] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def examine() -> Report:
    report = Report()
    checks: dict[str, Callable[[Report], Facts]] = {
        "machine": machine,
        "torch": torch_and_gpu,
        "attention": attention,
        "operations": operations,
        "decoders": decoders,
        "packages": packages,
        "extras": extras,
        "GPU packages": gpu_packages,
    }
    for name, check in checks.items():
        try:
            report.sections[name] = check(report)
        except Exception as error:  # a doctor does not faint: whatever fails is a finding
            report.problems.append(f"The check of {name} failed: {type(error).__name__}: {error}")
    return report


# ---- Machine


def machine(report: Report) -> Facts:
    facts = {
        "sightline": f"{sightline.__version__}, in {Path(sightline.__file__).parent}",
        "Python": f"{platform.python_version()}, {sys.executable}",
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "processors": str(available_processors()),
    }
    if "SC_PHYS_PAGES" in os.sysconf_names:
        facts["memory"] = _gb(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    try:
        import resource
    except ImportError:  # not on Windows
        return facts
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    facts["open files"] = str(files)
    if 0 <= files < _FEW_FILES:
        report.warnings.append(f"Only {files} files may be open at once; a busy server needs more: ulimit -n {_FEW_FILES}.")
    return facts


def torch_and_gpu(report: Report) -> Facts:
    import torch

    driver = _driver()
    built = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built without CUDA"
    facts: Facts = {"torch": f"{torch.__version__}, {built}", "threads": str(torch.get_num_threads())}
    if driver is not None:
        facts["NVIDIA driver"] = driver
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            found = torch.cuda.get_device_properties(index)
            facts[f"GPU {index}"] = f"{found.name}, {_gb(found.total_memory)}, capability {found.major}.{found.minor}"
            if found.major < 8:
                report.warnings.append(
                    f"GPU {index} ({found.name}) computes in bfloat16 slowly or not at all; serve with --dtype float16."
                )
        report.problems += _lacking_for_triton()
    elif driver is not None and not torch.version.cuda:
        report.warnings.append(
            f"There is an NVIDIA driver ({driver}), but torch is built without CUDA: the GPU is not used; "
            "pip install --force-reinstall 'torch==2.11.*'."
        )
    elif driver is not None:
        report.warnings.append(f"There is an NVIDIA driver ({driver}), but torch, {built}, cannot use the GPU.")
    else:
        report.warnings.append("There is no GPU: models run on the CPU, which is enough for small ones.")
    device, dtype = _device_and_dtype()
    facts["would run on"] = f"{device} in {_short(dtype)}"
    return facts


def _lacking_for_triton() -> list[str]:
    """Triton builds the functions that launch its kernels with the machine's C compiler."""
    found = []
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang", "cc")))):
        found.append("There is no C compiler, which Triton needs for its kernels; apt install gcc.")
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        found.append(f"Python's headers are missing, which Triton needs for its kernels; apt install python{version}-dev.")
    return found


def _driver() -> str | None:
    """Version of NVIDIA's driver, if there is one."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.split("\n")[0].strip() or None if done.returncode == 0 else None


def _device_and_dtype() -> tuple[Any, Any]:
    """Device and numbers that a usual checkpoint, stored as bfloat16, would run in."""
    from sightline.models.device import choose_device, choose_dtype

    device = choose_device("auto")
    return device, choose_dtype("auto", "bfloat16", device)


# ---- What would compute


def attention(report: Report) -> Facts:
    import torch

    names = {"of the tower": "segment_attention", "of the language model": "paged_attention"}
    facts: Facts = {}
    for title, name in names.items():
        facts[title] = _shown(_used(name)).replace(DEFINITION, "torch's scaled_dot_product_attention")
    if torch.cuda.is_available():
        backends = torch.backends.cuda
        enabled = {
            "flash": backends.flash_sdp_enabled(),
            "memory-efficient": backends.mem_efficient_sdp_enabled(),
            "cuDNN": backends.cudnn_sdp_enabled(),
            "math": backends.math_sdp_enabled(),
        }
        facts["torch's own has"] = ", ".join(name for name, on in enabled.items() if on)
    return facts


def operations(report: Report) -> Facts:
    from sightline.ops.dispatch import OPS
    from sightline.ops.kernels import register_kernels

    importlib.import_module("sightline.engine.load")  # what an engine imports registers all ops
    register_kernels()
    return {name: _shown(_used(name)) for name in sorted(OPS)}


def _used(name: str) -> "Counter[str]":
    """What would run the op's own examples here, and for how many of them: a kernel by its name, or the definition."""
    import torch

    from sightline.ops.dispatch import OPS, ExampleMaker
    from sightline.ops.kernels import register_kernels

    importlib.import_module("sightline.engine.load")
    register_kernels()
    device, dtype = _device_and_dtype()
    op = OPS[name]
    maker = ExampleMaker(device, dtype if dtype in op.tolerances else torch.float32)
    chosen = (op.choose(**example) for example in op.examples(maker))
    return Counter(DEFINITION if one is op.reference else one.name for one in chosen)


def _shown(used: "Counter[str]") -> str:
    if len(used) == 1:
        return next(iter(used))
    return ", ".join(f"{name} ({count} of {used.total()} shapes)" for name, count in used.most_common())


# ---- Decoders


def decoders(report: Report) -> Facts:
    import av
    import PIL
    from av.codec import Codec
    from PIL import features

    from sightline.media.decode import decode_image, decode_video
    from sightline.media.pillow import formats
    from sightline.media.source import load_image, load_video

    turbo = features.version_feature("libjpeg_turbo")
    if turbo is None:
        report.warnings.append("Pillow is built without libjpeg-turbo: JPEG images are decoded several times slower.")
    missing = [name for name in ("WEBP", "AVIF", "JPEG2000") if name not in formats()]
    if missing:
        report.warnings.append(f"Pillow is built without {', '.join(missing)}: such images are refused.")
    codecs = {name: _has_codec(Codec, name) for name in _VIDEO_CODECS}
    absent = [name for name, there in codecs.items() if not there]
    if absent:
        report.warnings.append(f"PyAV's ffmpeg cannot decode {', '.join(absent)}: such videos are refused.")
    with resources.as_file(resources.files("sightline.data") / "demo") as folder:
        picture = load_image(str(folder / "sign.png"), MediaConfig())
        clip = load_video(str(folder / "video.mkv"), MediaConfig())
    shapes = decode_image(picture).shape, decode_video(clip, [0]).shape
    ffmpeg = ".".join(map(str, av.library_versions["libavcodec"]))
    return {
        "images": f"Pillow {PIL.__version__} on the CPU, libjpeg-turbo {turbo or 'missing'}",
        "image formats": ", ".join(formats()),
        "videos": f"PyAV {av.__version__} on the CPU, libavcodec {ffmpeg}",
        "video codecs": ", ".join(name for name, there in codecs.items() if there),
        "tried": f"an image of {shapes[0][1]}x{shapes[0][0]} and a frame of {shapes[1][2]}x{shapes[1][1]}: decoded",
    }


def _has_codec(kind: Any, name: str) -> bool:
    try:
        return bool(kind(name, "r"))
    except ValueError:  # what PyAV raises for an unknown codec is one
        return False


# ---- Packages


def packages(report: Report) -> Facts:
    """Each dependency: the version that is here, whether it is new enough, and the one that the tests run with."""
    tested, facts = _tested(), {}
    for requirement in _requirements():
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        version = _version(requirement.name)
        if version is None:
            report.problems.append(f"The package {requirement.name} is not installed; pip install '{_bound(requirement)}'.")
        elif not requirement.specifier.contains(version, prereleases=True):
            report.problems.append(f"{requirement.name} is {version}, but {_bound(requirement)} is needed.")
        known = tested.get(canonicalize_name(requirement.name))
        same = version is not None and known is not None and version.split("+")[0] == known
        note = "" if same or known is None else f" (tested with {known})"
        facts[requirement.name] = f"{version or 'missing'}{note}"
    return facts


def extras(report: Report) -> Facts:
    """The optional groups of packages, what of them is missing and how to add it."""
    facts = {}
    for extra, wanted in sorted(_extra_requirements().items()):
        absent = [one.name for one in wanted if _version(one.name) is None]
        facts[extra] = f"without {', '.join(absent)}; {_adding(extra)}" if absent else "complete"
    return facts


# Packages of the gpu extra: the major compute capabilities that they are used on, and what goes without them.
_OF_THE_GPU = {
    "flash-attn-4": (range(9, 13), "attention runs in torch's and Triton's kernels, which are slower"),
    "quack-kernels": (range(9, 10), "products of the vision tower run in cuBLAS, which is a little slower"),
    "nvidia-nvimgcodec-cu13": (range(7, 13), "JPEGs are decoded on the CPU"),
}


def gpu_packages(report: Report) -> Facts:
    """Those of the gpu extra that are called; warns of what the GPU that is here could use and has not."""
    import torch

    majors = {torch.cuda.get_device_capability(index)[0] for index in range(torch.cuda.device_count())}
    wanted = {one.name: one for one in _extra_requirements().get("gpu", [])}
    facts = {}
    for name, (used_on, without) in _OF_THE_GPU.items():
        version = _version(name)
        facts[name] = version or "missing"
        if name not in wanted or not majors & set(used_on):
            continue
        if version is None:
            report.warnings.append(f"{name} is not installed, so {without}; {_adding('gpu')}.")
        elif not wanted[name].specifier.contains(version, prereleases=True):
            report.warnings.append(f"{name} is {version}, but {_bound(wanted[name])} is what runs; {_adding('gpu')}.")
    return facts


def _adding(extra: str) -> str:
    pins = " --constraint constraints-gpu.txt" if extra == "gpu" and (ROOT / "constraints-gpu.txt").exists() else ""
    return f"pip install '{DISTRIBUTION}[{extra}]'{pins}"


def _extra_requirements() -> dict[str, list[Requirement]]:
    """Of each optional group, those that are meant for this machine."""
    groups: dict[str, list[Requirement]] = {}
    for requirement in _requirements():
        if requirement.marker is not None:
            for extra in re.findall(r"extra == ['\"]([\w-]+)['\"]", str(requirement.marker)):
                if requirement.marker.evaluate({"extra": extra}):
                    groups.setdefault(extra, []).append(requirement)
    return groups


def _requirements() -> list[Requirement]:
    """Those of the installed package; in a clone that is not installed, those of its pyproject.toml."""
    try:
        return [Requirement(text) for text in metadata.requires(DISTRIBUTION) or []]
    except metadata.PackageNotFoundError:
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found = [Requirement(text) for text in project["dependencies"]]
        for extra, texts in project["optional-dependencies"].items():
            for requirement in map(Requirement, texts):
                own = f"({requirement.marker}) and " if requirement.marker is not None else ""
                found.append(Requirement(f'{_bound(requirement)} ; {own}extra == "{extra}"'))
        return found


def _bound(requirement: Requirement) -> str:
    return f"{requirement.name}{requirement.specifier}"


def _tested() -> dict[str, str]:
    """The versions that the tests run with, by package; known in a clone alone."""
    pins = ROOT / "constraints.txt"
    if not pins.exists():
        return {}
    return dict(re.findall(r"^([a-z0-9-]+)==(\S+)$", pins.read_text(encoding="utf-8"), re.MULTILINE))


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _gb(count: int) -> str:
    return f"{count / 1e9:.1f} GB"


def _short(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
