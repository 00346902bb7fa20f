# SPDX-License-Identifier: Apache-2.0
"""The manual page that `ejk manual` prints, as Markdown."""

import html
import re
import subprocess

ESCAPES = {r"\-": "-", r"\(dq": '"', r"\(aq": "'", r"\e": "\\", r"\&": "", r"\fB": "", r"\fI": "", r"\fR": ""}


def plain(text):
    text = re.sub(r"\\(?:\(\w\w|f\w|.)", lambda found: ESCAPES[found.group()], text)
    return re.sub(r'^"(.*)"$', r"\1", text.strip())


def shown(text):
    return re.sub(r"([\\`*_\[\]|])", r"\\\1", html.escape(plain(text), quote=False))


def as_markdown(roff):
    """What the manual page uses of man(7): headings, paragraphs, tagged paragraphs, bold and italic words."""
    out, tag_next = [], False
    for line in roff.splitlines():
        macro, _, rest = line.partition(" ") if line.startswith(".") else ("", "", line)
        if macro == ".SH":
            out += ["", f"## {plain(rest).capitalize()}", ""]
        elif macro == ".SS":
            out += ["", f"### {shown(rest)}", ""]
        elif macro in (".PP", ".TP"):
            out.append("")
            tag_next = macro == ".TP"
        elif macro in (".TH", ".nf", ".fi"):
            continue
        else:
            word, _, behind = rest.partition(" ") if macro in (".BR", ".IR") else (rest, "", "")
            text = f"`{plain(word)}`{shown(behind)}" if macro else shown(word)
            out.append(f"{text}<br>" if tag_next else text)
            tag_next = False
    return "\n".join(out) + "\n"


def write(root):
    """build/docs/manual.md, from a tool that was built; without one it says so."""
    tools = sorted(root.glob("build/*/cli/ejk"), key=lambda path: path.stat().st_mtime)
    if tools:
        text = as_markdown(subprocess.run([tools[-1], "manual"], check=True, capture_output=True, text=True).stdout)
    else:
        text = "This copy of the site was made without the tool. `ejk manual` prints what belongs here.\n"
    (root / "build/docs/manual.md").write_text(text)
