# SPDX-License-Identifier: Apache-2.0
"""How Sphinx makes the site of these documents: `make docs`."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "docs/site"), str(ROOT / "python")]

import manual  # docs/site
import public_names  # docs/site
import undocumented  # docs/site
from sphinx.ext.autodoc.mock import mock
from sphinx.util import logging

project = "ejk"
release = ".".join(re.findall(r"#define EJK_VERSION_[A-Z]+ (\d+)\n", (ROOT / "include/ejk/version.h").read_text()))
copyright = "the authors of ejk, Apache-2.0"
extensions = ["myst_parser", "breathe", "sphinx.ext.autodoc"]
exclude_patterns = ["requirements.txt"]

html_theme = "furo"
html_title = f"ejk {release}"
html_static_path = ["site/site.css"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False

myst_heading_anchors = 3  # links to headings work as they do where the repository is shown
myst_enable_extensions = ["colon_fence"]

breathe_projects = {"ejk": str(ROOT / "build/docs/doxygen/xml")}
breathe_default_project = "ejk"
breathe_default_members = ("members", "undoc-members")
suppress_warnings = ["duplicate_declaration.cpp"]  # every header opens the namespace again

autodoc_mock_imports = ["ejk._core"]  # the reference is made without compiling the extension
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
default_role = "code"  # `words` of docstrings
autodoc_default_options = {"undoc-members": True}  # so that read_docstring meets them
python_maximum_signature_line_length = 100
cpp_maximum_signature_line_length = 100


def show_files_of_the_project(app, docname, source):
    """SECURITY.md and the like stand outside of docs/; the site has them in project/."""
    name = re.fullmatch(r"project/(\w+)", docname)
    if name and (of_project := ROOT / f"{name[1].upper()}.md").exists():
        source[0] = of_project.read_text().replace("](docs/", "](../")
    source[0] = re.sub(r"\]\((?:\.\./)*([A-Z]+)\.md", lambda found: f"](/project/{found[1].lower()}.md", source[0])


def read_docstring(app, what, name, obj, options, lines):
    """Indented parts are code. A public name without words is a warning, and so an error; of C++ see setup."""
    if not any(line.strip() for line in lines):
        logging.getLogger(__name__).warning("%s %s is not documented: give it a docstring", what, name)
    for i in range(len(lines) - 1, 0, -1):
        if lines[i].startswith("    ") and not lines[i - 1].strip() and (i < 2 or not lines[i - 2].startswith("    ")):
            lines[i:i] = ["::", ""]


def ask_for_words(app, domain, objtype, content):
    """The same for attributes that are only annotated, of which read_docstring does not hear. Kernel explains its own."""
    name = content.parent[0].get("fullname", "")
    explained = name.rpartition(".")[2] in ("op_id", "version", "described") and not name.startswith("Kernel.")
    if domain == "py" and objtype == "attribute" and not content.astext().strip() and not explained:
        logging.getLogger(__name__).warning("attribute %s is not documented: write `#:` and words behind it", name)


def look_for_public_names(app, env):
    """Every public name of Python has its place in the reference."""
    with mock(autodoc_mock_imports):
        import ejk

        for name in public_names.not_shown(ejk, env.get_domain("py").objects):
            logging.getLogger(__name__).warning(
                "%s is public and not shown: name it in docs/reference/python.md, or begin it with an underscore", name
            )


def setup(app):
    app.connect("source-read", show_files_of_the_project)
    app.connect("env-check-consistency", look_for_public_names)
    app.connect("autodoc-process-docstring", read_docstring)
    app.connect("object-description-transform", ask_for_words)
    (ROOT / "build/docs").mkdir(parents=True, exist_ok=True)
    subprocess.run(["doxygen", "docs/site/Doxyfile"], cwd=ROOT, check=True)
    for place, name in undocumented.undocumented(ROOT):
        logging.getLogger(__name__).warning("%s: %s is not documented: write a comment above or behind it", place, name)
    manual.write(ROOT)
