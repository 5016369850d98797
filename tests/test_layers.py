"""What docs/design.md says of the package's folders, beside the layers that `make lint` checks."""

from __future__ import annotations

import ast
import subprocess
import sys

from helpers import ROOT

PACKAGE = ROOT / "ptxrt"
FILES = sorted(PACKAGE.rglob("*.py"))
MODULES = {".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path for path in FILES}


def imported(module: str) -> set[str]:
    """The modules of ptxrt that a module imports, anywhere in its text."""
    found = set()
    for node in ast.walk(ast.parse(MODULES[module].read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return found & MODULES.keys()


def test_a_file_with_an_underscore_is_used_in_its_own_folder_alone() -> None:
    for module in MODULES:
        for other in imported(module):
            folder, private, _ = other.partition("._")
            assert not private or module == folder or module.startswith(f"{folder}."), f"{module} imports {other}"


def test_no_function_has_the_name_of_a_module_beside_it() -> None:
    for module, path in MODULES.items():
        if path.name != "__init__.py":
            continue
        beside = {other.rpartition(".")[2] for other in MODULES if other.rpartition(".")[0] == module}
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom):
                names = {
                    alias.asname or alias.name for alias in node.names if f"{node.module}.{alias.name}" not in MODULES
                }
                assert not names & beside, f"{module}: {names & beside}"


def test_importing_ptxrt_needs_no_templates_and_no_progress_bar() -> None:
    program = "import sys; sys.modules['jinja2'] = sys.modules['tqdm'] = sys.modules['rich'] = None; import ptxrt"
    subprocess.run([sys.executable, "-c", program], check=True)
