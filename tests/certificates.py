"""Certificates for servers of tests."""

import shutil
import subprocess
from pathlib import Path

import pytest


def make_certificate(folder: Path, host: str) -> tuple[Path, Path]:
    """A certificate for this host that nobody has signed but itself, and its key."""
    if shutil.which("openssl") is None:
        pytest.skip("needs the openssl command to make a certificate")
    certificate, key = folder / "certificate.pem", folder / "key.pem"
    made = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2"]
    names = ["-subj", f"/CN={host}", "-addext", f"subjectAltName=DNS:{host}"]
    subprocess.run([*made, *names, "-keyout", key, "-out", certificate], check=True, capture_output=True)
    return certificate, key
