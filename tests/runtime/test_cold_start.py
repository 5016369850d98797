"""What a process has imported after its first op: nothing that the op did not need."""

from __future__ import annotations

import pytest
from helpers import printed_by

FIRST = """
    import os
    import sys
    import numpy as np
    os.environ |= {{"PTXRT_CACHE_DISABLE": "0", "PTXRT_CACHE_DIR": {folder!r}}}
    before = set(sys.modules)
    import ptxrt
    x = ptxrt.to_device(np.arange(32, dtype=np.float32).reshape(1, 4, 8), "sim:0")
    y = ptxrt.ops.group_norm(x, None, None, groups=2).to_host()
    assert abs(y.mean()) < 1e-6 and abs(y.std() - 1) < 1e-3
    print(*sorted(set(sys.modules) - before))
"""
# Of packages that others may have loaded before (a .pth file in site-packages), those that came later.
NEEDLESS = (
    "rich", "tqdm", "cuda", "hip", "torch", "msgpack", "elftools", "importlib.metadata", "multiprocessing", "numpy.ma",
    "numpy.typing", "pkgutil", "difflib", "subprocess",
    "ptxrt.backends.cuda", "ptxrt.backends.hip", "ptxrt.check", "ptxrt.commands", "ptxrt.testing",
    "ptxrt.compilers.nvrtc", "ptxrt.compilers.hiprtc", "ptxrt.compilers.hip_on_nvrtc", "ptxrt.compilers.declarations",
    "ptxrt.ops.references", "ptxrt.ops._batch_norm", "ptxrt.ops._grid_sample", "ptxrt.ops._local_response_norm",
    "ptxrt.ops._softmax2d", "ptxrt.ops._upsample_nearest2d", "ptxrt.ops._layer_norm", "ptxrt.ops._rms_norm",
    "ptxrt.runtime.inference", "ptxrt.runtime.textures", "ptxrt.runtime.variables", "ptxrt.runtime.reload",
)  # fmt: skip
LOADED_FOR_CUDA = """
    import sys
    from ptxrt.backends import cuda
    from ptxrt.runtime import array, kernel
    from ptxrt import ops
    ops.group_norm
    print(*sorted(sys.modules))
"""
# What a kernel that is in the store does without.
NEEDLESS_ON_CUDA = (
    *(name for name in NEEDLESS if name.startswith("ptxrt.") and name != "ptxrt.backends.cuda"),
    "jinja2", "ptxrt.sim", "ptxrt.compilers.nvjitlink", "ptxrt.compilers.toolkit", "ptxrt.compilers.occupancy",
    "ptxrt.compilers.ptx_text", "ptxrt.images", "logging",
)  # fmt: skip


def among(modules: str, needless: tuple[str, ...]) -> list[str]:
    """Return which of the modules are needless, or in a package that is."""
    return [name for name in modules.split() if any(name == one or name.startswith(f"{one}.") for one in needless)]


def test_a_first_op_on_sim_imports_nothing_else_and_the_second_time_no_templates(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    script = FIRST.format(folder=str(tmp_path_factory.mktemp("store")))
    first, second = printed_by(script), printed_by(script)
    assert among(first, NEEDLESS) == []
    assert among(second, (*NEEDLESS, "jinja2")) == []
    assert "ptxrt.ops._group_norm" in second.split()


def test_of_the_compilers_cuda_has_imported_none_before_it_compiles() -> None:
    modules = printed_by(LOADED_FOR_CUDA)
    assert among(modules, NEEDLESS_ON_CUDA) == []


def test_every_op_is_found_by_its_name_and_no_other_name_is() -> None:
    script = """
        from ptxrt import ops
        assert not [name for name in ops.__all__ if getattr(ops, name, None) is None]
        assert set(ops.__all__) <= set(dir(ops))
        for name in ("group_norms", "GroupNorm", "softmax2d_sums", "WholeConfig"):
            try:
                getattr(ops, name)
            except AttributeError as error:
                print(str(error).split()[-1])
    """
    assert printed_by(script).split() == ["'group_norms'", "'GroupNorm'", "'softmax2d_sums'", "'WholeConfig'"]
