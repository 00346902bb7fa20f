# SPDX-License-Identifier: Apache-2.0
"""Lets Doxygen read the plain comments of the public headers.

The first comment is about the file. A comment above declarations belongs to all of them, up to a blank line or the next
comment. A comment behind a declaration belongs to that one, with every name in it. Line numbers stay, so that messages
name the right line.
"""

import re
import sys

LINE = re.compile(r'((?:[^/"]|/(?!/)|"(?:\\.|[^"\\])*")*)(//)?(.*)')


def escaped(comment):
    """For Doxygen: its commands and HTML are plain text here, and `code` is code."""
    text = re.sub(r"([\\@<>&#$%])", r"\\\1", comment).replace("*/", "* /")
    return re.sub(r"`([^`]+)`", r"<tt>\1</tt>", text)


def without_private_parts(lines):
    private_until, goes_on = None, False
    for line in lines:
        if goes_on or line.startswith("#define EJK_DETAIL_"):
            goes_on = line.endswith("\\")
            yield ""
            continue
        if found := re.fullmatch(r"( *) private:", line):
            private_until = re.compile(found[1] + r"(\}.*;| public:| protected:)$")
        if private_until and not private_until.match(line):
            yield ""
            continue
        private_until = None
        yield line


def split(line):
    """Code, and the comment behind it or None. Headings, licences and the ends of namespaces have none."""
    code, slashes, comment = LINE.fullmatch(line).groups()
    is_none = not slashes or re.match(r" -{2,}| SPDX", comment) or re.match(r"\}|#", code)
    return code.rstrip(), None if is_none else comment


def is_drawn(comment):
    """Further in than a sentence: code, or a list. Its lines are shown as they are."""
    return comment.startswith("   ")


def with_drawings(lines):
    """Marks stretches of such lines for Doxygen."""
    drawn = [re.match(r" *///   ", line) is not None for line in lines]
    for i, line in enumerate(lines):
        begins, ends = drawn[i] and not (i and drawn[i - 1]), drawn[i] and not (i + 1 < len(lines) and drawn[i + 1])
        if begins:
            line = line.replace("///   ", "/// \\verbatim   ", 1)
        yield line + " \\endverbatim" if ends else line


def ends_declaration(code):
    return not code or code.endswith((";", "{", "}", ",", ":"))


def readable(lines):
    """The lines as Doxygen understands them."""
    parts = [split(line) for line in without_private_parts(lines)]
    above, above_indent = [], ""  # the comment that declarations of this indentation belong to
    behind_at, behind_column = None, None  # the line whose comment the next ones may go on with
    out, ended = ["/// \\file"], True  # in place of the licence
    for (code, comment), line in zip(parts[1:], lines[1:]):
        indent = code[: len(code) - len(code.lstrip())] if code else line[: len(line) - len(line.lstrip())]
        if not code and comment is not None and behind_at is not None and len(indent) == behind_column:
            head, _, tail = out[behind_at].rpartition(" */ ")
            out[behind_at] = f"{head}{escaped(comment)} */ {tail}"
            out.append("")
            continue
        behind_at = None
        if not code and comment is not None:
            if not (out and out[-1].lstrip().startswith("///")):
                above = []
            if is_drawn(comment):
                out.append(f"{indent}///{comment}")
            else:
                above, above_indent = [*above, escaped(comment)], indent
                out.append(f"{indent}///{escaped(comment)}")
            ended = True
            continue
        if not code:
            above = []
            out.append("")
            continue
        own = code.lstrip()
        begins = ended and not re.match(r"\}|#|public:|protected:|else\b|friend\b", own)
        first_below = bool(out) and out[-1].lstrip().startswith("///")
        if comment is not None and begins and not first_below:
            behind_at, behind_column = len(out), len(line) - len(line.split("//", 1)[1]) - 2
            out.append(f"{indent}/**{escaped(comment)} */ {own}")
        elif comment is not None:
            out.append(f"{code}  ///<{escaped(comment)}")
        elif above and own.startswith("#define") and not first_below and not code.endswith("\\"):
            out.append(f"{code}  ///<{' '.join(above)}")
        elif begins and above and not first_below and indent == above_indent:
            out.append(f"{indent}/**{' '.join(above)} */ {own}")
        else:
            out.append(code)
        ended = ends_declaration(code)
    return list(with_drawings(out))


if __name__ == "__main__":
    with open(sys.argv[1]) as file:
        print("\n".join(readable(file.read().splitlines())))
