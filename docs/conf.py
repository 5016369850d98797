"""The documentation as a site: ``make docs`` builds it into build/docs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import ptxrt

project = "ptxrt"
author = "The ptxrt authors"
version = release = ptxrt.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["results/*.json"]
myst_heading_anchors = 3
myst_enable_extensions = ["colon_fence"]

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_google_docstring = False
napoleon_use_rtype = False

# Pygments' PTX knows no guard such as @%p.
suppress_warnings = ["misc.highlighting_failure"]

html_theme = "furo"
html_title = f"ptxrt {version}"


def setup(app: Any) -> None:
    """Copy the pictures that pages name in HTML, for light and dark, which Sphinx does not see."""
    pictures = Path(__file__).parent / "pictures"
    app.connect(
        "build-finished",
        lambda built, _: shutil.copytree(pictures, Path(built.outdir) / "pictures", dirs_exist_ok=True),
    )
