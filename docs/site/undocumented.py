# SPDX-License-Identifier: Apache-2.0
"""Public names and macros of C++ without documentation, from Doxygen's XML.

What needs no words of its own: constructors, destructors and operators of a documented type, further overloads of a
documented function, what overrides a documented one, and the hooks of a kernel, which ejk/kernel.h explains.
"""

import re
import xml.etree.ElementTree

HOOKS = {
    "Arguments", "Config", "GpuConfig", "op_id", "version",
    "run", "reference", "heuristic_cfg", "candidate_cfgs", "is_valid", "tolerance", "prepare", "key",
    "fwd_with_residuals", "vjp", "custom_vjp", "ejk_key",
}  # fmt: skip
VARIANT = re.compile(r"(_shard_map|_batch)?(_cpu|_opencl|_cuda|_gpu)?$")


def is_described(definition):
    return any(
        "".join(part.itertext()).strip()
        for tag in ("briefdescription", "detaileddescription")
        for part in definition.findall(tag)
    )


def needs_words(member, scope):
    name = member.findtext("name")
    is_special = name == scope.rpartition("::")[2] or name.startswith(("~", "operator", "@"))
    if is_special or member.find("reimplements") is not None:
        return False
    return not (scope.startswith("ejk::ops::") and VARIANT.sub("", name) in HOOKS) and name != "ejk_key"


class Headers:
    """Where names are declared. All names of one declaration share its first line, and its comment."""

    def __init__(self, root):
        self.root, self.lines = root, {}

    def place(self, definition):
        location = definition.find("location")
        file, line = "include/" + location.get("file").removeprefix("include/"), int(location.get("line"))
        if file not in self.lines:
            self.lines[file] = (self.root / file).read_text().splitlines()
        if definition.get("kind") == "variable":
            while re.search(r",( *//.*)?$", self.lines[file][line - 2]):
                line -= 1
        return f"{file}:{line}"


def names(root):
    """(place, what it is called, whether it is described) of every public name that needs words."""
    place = Headers(root).place
    for path in sorted((root / "build/docs/doxygen/xml").glob("*.xml")):
        for compound in xml.etree.ElementTree.parse(path).getroot().findall("compounddef"):
            kind, scope = compound.get("kind"), compound.findtext("compoundname")
            if kind == "file":
                for macro in compound.findall("sectiondef/memberdef[@kind='define']"):
                    yield place(macro), macro.findtext("name"), is_described(macro)
                continue
            if kind not in ("class", "struct", "namespace", "concept") or compound.get("prot") == "private":
                continue
            if re.search(r"::detail\b|^std\b|<", scope):
                continue
            if kind != "namespace":
                yield place(compound), scope, is_described(compound)
            members = compound.findall("sectiondef/memberdef")
            described = {key for m in members if is_described(m) for key in (m.findtext("name"), place(m))}
            for member in members:
                if member.get("prot") == "private" or member.get("kind") == "friend" or not needs_words(member, scope):
                    continue
                name = member.findtext("name")
                yield place(member), f"{scope}::{name}", name in described or place(member) in described
                for value in member.findall("enumvalue"):
                    described_value = is_described(value) or is_described(member)
                    yield place(member), f"{scope}::{name}::{value.findtext('name')}", described_value


def undocumented(root):
    return sorted({(where, name) for where, name, described in names(root) if not described})
