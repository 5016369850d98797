"""The wheel: what is in it, and that it works in an environment with nothing else."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]

# As a user has it: the package and its dependencies, nothing of CUDA's, some other folder.
USE = """
import sys
import numpy as np
import ptxrt
assert "site-packages" in ptxrt.__file__, ptxrt.__file__
assert not any(name.split(".")[0] in ("cuda", "cupy", "torch") for name in sys.modules)
dev = ptxrt.Device("sim:0")
x = np.arange(32, dtype=np.float32).reshape(1, 4, 8)
y = ptxrt.ops.group_norm(ptxrt.to_device(x, dev), None, None, 2).to_host()
assert abs(y.reshape(2, 16).mean(1)).max() < 1e-6 and abs(y.std() - 1) < 1e-3
print(*sorted(spec.entry for spec in ptxrt.ops.kernels() if spec.source.text))
"""


def declared_packages() -> set[str]:
    """The packages that pyproject.toml lists; read as text, since Python 3.10 has no tomllib."""
    text = (ROOT / "pyproject.toml").read_text()
    (packages,) = re.findall(r"^packages = \[(.*?)\]", text, re.DOTALL | re.MULTILINE)
    return set(re.findall(r'"([\w.]+)"', packages))


def test_every_folder_of_the_package_is_declared() -> None:
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "ptxrt").rglob("*.py")}
    modules = {".".join(folder.parts) for folder in folders}
    assert modules == declared_packages() - {"ptxrt.kernels_ptx", "ptxrt.kernels_hip"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel, built of a copy: setuptools leaves a build/ behind, whose old files would get into the next wheel."""
    folder = tmp_path_factory.mktemp("wheel")
    leave = shutil.ignore_patterns(".*", "build", "dist", "*.egg-info", "__pycache__")
    shutil.copytree(ROOT, folder / "checkout", ignore=leave)
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(folder), str(folder / "checkout")]
    subprocess.run(pip, check=True)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.wheel
def test_the_wheel_has_the_package_and_the_kernels_and_nothing_else(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    assert {re.split(r"[/-]", name)[0] for name in names} == {"ptxrt"}
    files = [*(ROOT / "ptxrt").rglob("*.py"), ROOT / "ptxrt" / "py.typed", *(ROOT / "ptxrt/ops/tables").glob("*.json")]
    wanted = {str(path.relative_to(ROOT)) for path in files}
    wanted |= {f"ptxrt/{path.parent.name}/{path.name}" for path in ROOT.glob("kernels_*/*")}
    assert wanted == {name for name in names if ".dist-info/" not in name}


@pytest.mark.wheel
def test_the_wheel_runs_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", str(tmp_path / "venv")], check=True)
    python = tmp_path / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "install", "--quiet", str(wheel)], check=True)
    # -I: neither this folder nor PYTHONPATH may help it.
    done = subprocess.run([python, "-I", "-c", USE], check=True, capture_output=True, text=True, cwd=tmp_path)
    assert "group_norm_kernel" in done.stdout.split()
    site = next((tmp_path / "venv" / "lib").glob("python*/site-packages"))
    assert not [name for name in ("tools", "tests", "kernels_ptx", "kernels_hip") if (site / name).exists()]
    command = subprocess.run([tmp_path / "venv" / "bin" / "ptxrt", "demo"], check=False, capture_output=True, text=True)
    assert command.returncode == 0, command.stdout + command.stderr
