"""How Sphinx makes a site of these pages: `make docs`."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
sys.path[:0] = [str(HERE), str(SOURCE)]

import secureafl  # noqa: E402

project = "SecureAFL"
author = "the SecureAFL authors"
copyright = "2026, the SecureAFL authors"
version = release = secureafl.__version__

extensions = ["sphinx.ext.autodoc", "sphinx.ext.napoleon", "myst_nb", "site_pages", "site_api"]
exclude_patterns = ["sphinx"]
default_role = "py:obj"  # docstrings write `name`; it becomes a link where there is such a name
highlight_language = "none"  # of blocks that name none: commands, formulas

# Markdown as GitHub reads it: its anchors, its tables, its tags for pictures.
myst_heading_anchors = 4
myst_enable_extensions = ["html_image"]
nb_execution_mode = "off"  # notebooks hold what a test has seen come out of them
nb_merge_streams = True

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
maximum_signature_line_length = 80

html_theme = "furo"
html_title = "SecureAFL"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_search_summary = False  # a page without a server may not read others
html_show_sourcelink = False
html_theme_options = {
    "source_repository": "https://github.com/secureafl/secureafl/",
    "source_branch": "main",
    "source_directory": "docs/",
}
