# SPDX-License-Identifier: Apache-2.0
"""What a shared libejk exports, beside what its headers declare."""

import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def exported(library):
    """Qualified names of its symbols, without what they take and are made with."""
    lines = subprocess.run(
        ["nm", "-D", "--defined-only", library], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    symbols = [line.split()[2] for line in lines]
    plain = subprocess.run(
        ["c++filt", "--no-params"], input="\n".join(symbols), capture_output=True, text=True, check=True
    )
    names = set()
    for symbol in plain.stdout.splitlines():
        of_type = re.match(r"(typeinfo name|typeinfo|vtable|VTT) for (.*)", symbol)
        if of_type and "::" not in of_type[2]:
            continue  # double(): it is the language's
        symbol = of_type[2] if of_type else re.sub(r"^(guard variable for|(non-)?virtual thunk to) ", "", symbol)
        name, depth = "", 0
        for character in re.sub(r"\boperator\b.*", "operator", symbol):
            if depth == 0 and character == "(":
                break
            depth += (character == "<") - (character == ">")
            name += character if depth == 0 and character != ">" else ""
        names.add(re.sub(r"\[abi:\w+\]|::\{lambda.*", "", name).split(" ")[0])
    # The standard library's own templates are visible wherever they are made.
    return {name for name in names if not name.startswith(("std::", "__gnu_cxx::", "operator"))}


def preprocessed():
    """The public headers without comments and with what macros make, and nothing of other headers."""
    headers = sorted(path.relative_to(ROOT / "include") for path in ROOT.glob("include/**/*.h"))
    source = "".join(f"#include <{header}>\n" for header in headers)
    done = subprocess.run(
        ["c++", "-std=c++20", "-E", f"-I{ROOT / 'include'}", "-x", "c++", "-"],
        input=source, capture_output=True, text=True, check=True,
    )  # fmt: skip
    is_ours, kept = False, []
    for line in done.stdout.splitlines():
        if marker := re.match(r'# \d+ "(.*?)"', line):
            is_ours = marker[1].startswith(f"{ROOT}/include/")
        elif is_ours and not line.startswith("#"):
            kept.append(line)
    return "\n".join(kept)


TOKEN = re.compile(r'\d[\w.\']*|"(?:\\.|[^"\\])*"|\'(?:\\.|[^\'\\])*\'|\w+|::|->|<=>|<<|[<>=!]=|\[\[|\]\]|\S')
CLASSES = {"class", "struct", "union", "enum"}
# A parenthesis behind one of these does not begin parameters.
NO_FUNCTION = {"alignas", "decltype", "explicit", "noexcept", "requires", "sizeof", "static_assert", "__attribute__"}
BODY, VALUE = object(), object()


def closing(tokens, at, closers={"(": ")", "<": ">", "[[": "]]"}):
    """The place of the bracket that closes the one at `at`."""
    opener, depth = tokens[at], 0
    for place in range(at, len(tokens)):
        depth += (tokens[place] == opener) - (tokens[place] == closers[opener])
        if depth == 0:
            return place
    return len(tokens) - 1


def is_balanced(tokens):
    return all(tokens.count(opener) == tokens.count(closer) for opener, closer in ("()", "<>"))


def plain_head(tokens):
    """Of a declaration: without attributes, parameters of templates, and what is assigned."""
    head, at = [], 0
    while at < len(tokens):
        token = tokens[at]
        after = tokens[at + 1] if at + 1 < len(tokens) else ""
        if token == "[[":
            at = closing(tokens, at)
        elif token == "template" and after == "<":
            at = closing(tokens, at + 1)
        elif token in NO_FUNCTION and after == "(":
            at = closing(tokens, at + 1)
        elif token == "=" and "operator" not in head:
            if head.count("(") > head.count(")"):  # of a parameter
                break
            at = next((i for i in range(at, len(tokens)) if tokens[i] == "," and is_balanced(tokens[at:i])), len(tokens))
            continue
        else:
            head.append(token)
        at += 1
    return head


def declared_names(head):
    """Of a function, or of variables."""
    if "operator" in head:
        return ["operator"]
    depth, last, names = 0, None, []
    for at, token in enumerate(head):
        depth += (token == "<") - (token == ">")
        if depth == 0 and token == "(" and at and head[at - 1].isidentifier():
            return [("~" if at > 1 and head[at - 2] == "~" else "") + head[at - 1]]
        if depth == 0 and token == "," and last:
            names.append(last)
        if depth == 0 and token.isidentifier():
            last = token
    return [*names, last] if last else []


def class_name(head):
    """Of the class, union or enumeration that a brace opens; None if it opens something else."""
    depth = 0
    for at, token in enumerate(head):
        depth += (token == "<") - (token == ">")
        if depth == 0 and token == "(":
            return None
        if depth == 0 and token in CLASSES:
            rest = [word for word in head[at + 1 :] if word not in CLASSES]
            return rest[0] if rest and rest[0].isidentifier() else ""
    return None


def declared(text):
    """Qualified names of all functions, variables and types that headers define or declare members of.

    All operators of a scope are one name. A class that is only named has no members here. Constructors, destructors
    and assignments are there without being written.
    """
    names, scope, tokens = set(), [], []  # scope: names, and BODY or VALUE for what declares nothing

    def add(name, where):
        if name:
            names.add("::".join([part for part in where if part] + [name]))

    def add_all(head):
        for name in declared_names(head):
            add(name, scope[:-1] if "friend" in head else scope)

    for token in TOKEN.findall(text):
        if token == "}":
            tokens = tokens if scope.pop() is VALUE else []
        elif BODY in scope or VALUE in scope:
            if token == "{":
                scope.append(BODY)
        elif token == "{" and tokens.count("(") > tokens.count(")"):
            scope.append(VALUE)  # of a parameter
        elif token == "{":
            head = plain_head(tokens)
            if "namespace" in head:
                scope.append("::".join(part for part in head[head.index("namespace") + 1 :] if part.isidentifier()))
            elif (name := class_name(head)) is not None:
                add(name, scope)
                for special in (name, f"~{name}", "operator"):
                    add(name and special, [*scope, name])
                scope.append(name)
            else:
                add_all(head)
                scope.append(BODY)
            tokens = []
        elif token == ";":
            head = plain_head(tokens)
            if not {"using", "typedef", "static_assert"} & set(head) and class_name(head) is None:
                add_all(head)
            tokens = []
        elif token == ":" and tokens in (["public"], ["private"], ["protected"]):
            tokens = []
        else:
            tokens.append(token)
    return names


def strange(library):
    """What it exports and its headers do not declare."""
    return sorted(exported(library) - declared(preprocessed()))
