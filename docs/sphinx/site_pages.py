"""Sphinx: pages that read well on GitHub gain links, and pictures follow the theme.

A page may link to any file of the repository. What is not part of the site leads to GitHub; what
does not exist is left to MyST, which warns, and a warning ends the build.
"""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

DOCS = Path(__file__).parents[1].resolve()
ROOT = DOCS.parent
WEB = "https://github.com/secureafl/secureafl"
# Pages that only include a file of the repository's root, where GitHub looks for it.
INCLUDED = {
    "contributing": ROOT / "CONTRIBUTING.md",
    "security": ROOT / "SECURITY.md",
    "changelog": ROOT / "CHANGELOG.md",
}


class LinksOutOfTheSite(SphinxTransform):
    """Let links between files lead to the site's page of a file, or else to GitHub."""

    default_priority = 5  # before Sphinx copies what can be downloaded

    def apply(self, **kwargs: Any) -> None:
        """Look at every link of a page."""
        kinds = (addnodes.download_reference, addnodes.pending_xref)
        found = [node for node in self.document.findall() if isinstance(node, kinds)]
        for node in found:
            outside = node["reftarget"].startswith("/")  # Markdown, but no page of the site
            if node["reftype"] == "myst" and (outside or node.get("refdomain") != "doc"):
                self._lead(node, f"{node['reftarget']}.md" if outside else node["reftarget"])

    def _lead(self, node: nodes.Element, link: str) -> None:
        target, _, anchor = link.partition("#")
        if not target:
            return
        path = (self._folder() / target).resolve()
        page = next((name for name, file in INCLUDED.items() if file == path), None)
        if page is None and path.is_relative_to(DOCS) and path.suffix == ".md":
            page = str(path.relative_to(DOCS).with_suffix(""))
        if page is not None:
            words = {"refdomain": "doc", "reftarget": page, "reftargetid": anchor or None}
            link = addnodes.pending_xref("", *node.children, **{**node.attributes, **words})
            node.replace_self(link)
        elif path.is_dir() or (path.is_file() and not path.is_relative_to(DOCS)):
            form = "tree" if path.is_dir() else "blob"
            address = f"{WEB}/{form}/main/{path.relative_to(ROOT)}"
            node.replace_self(nodes.reference("", "", *node.children, refuri=address))

    def _folder(self) -> Path:
        included = INCLUDED.get(self.env.docname)
        return included.parent if included else (DOCS / self.env.docname).parent


class NamesToReference(SphinxTransform):
    """Let public names between backticks lead to the reference: `RunResult`, `secureafl.fit`."""

    default_priority = 5  # before Sphinx looks where references lead

    def apply(self, **kwargs: Any) -> None:
        """Make a link of each; one that leads nowhere stays as it was."""
        if self.env.docname.startswith("reference/"):
            return
        for literal in list(self.document.findall(nodes.literal)):
            name = re.fullmatch(r"(?:secureafl\.)?([A-Z]\w+(\.\w+)*)", literal.astext())
            name = name or re.fullmatch(r"secureafl\.(\w+(\.\w+)*)(\(.*\))?", literal.astext())
            inside = isinstance(literal.parent.parent, (nodes.reference, addnodes.pending_xref))
            if name and not inside and not isinstance(literal.parent, nodes.reference):
                words = {"refdomain": "py", "reftype": "obj", "refdoc": self.env.docname}
                words |= {"reftarget": f"secureafl.{name[1]}", "refexplicit": True}
                link = addnodes.pending_xref("", **words, refwarn=False)
                literal.replace_self(link)
                link.append(literal)


class PicturesByTheme(SphinxTransform):
    """A picture NAME-light.png is NAME-dark.png where the page is dark."""

    default_priority = 5  # before Sphinx collects the files of pictures

    def apply(self, **kwargs: Any) -> None:
        """Put the dark one beside each light one; the theme shows one of them."""
        for light in list(self.document.findall(nodes.image)):
            dark = copy.copy(light)
            dark["uri"] = light["uri"].replace("-light.", "-dark.")
            place = (DOCS / self.env.docname).parent
            if dark["uri"] != light["uri"] and (place / dark["uri"]).is_file():
                light["classes"] = [*light["classes"], "only-light"]
                dark["classes"] = [*dark["classes"], "only-dark"]
                light.parent.insert(light.parent.index(light) + 1, dark)


def setup(app: Sphinx) -> dict[str, bool]:
    """Tell Sphinx."""
    app.add_transform(LinksOutOfTheSite)
    app.add_transform(NamesToReference)
    app.add_transform(PicturesByTheme)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
