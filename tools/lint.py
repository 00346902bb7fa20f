# SPDX-License-Identifier: Apache-2.0
"""usage: tools/lint.py [BASE]

Runs clang-tidy on the sources of src, cli and python, or with BASE on those that differ from where this branch left BASE,
committed or not. `make lint` makes what it needs in build/lint.
A header is checked in the sources that include it, or where only headers do, in the sources that include those.
"""

import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = ("src", "cli", "python")
RULES = ".clang-tidy"


def sources(root):
    paths = [p for folder in (*FOLDERS, "include") for p in sorted((root / folder).rglob("*"))]
    return [p for p in paths if p.suffix in (".h", ".cpp")]


def includers(root):
    """Which files include each one, by what they write in quotes or brackets."""
    found = collections.defaultdict(set)
    for path in sources(root):
        for name in re.findall(r'(?m)^ *#include ["<]([\w/.]+)[">]', path.read_text()):
            for place in (path.parent, root / "src", root / "include"):
                if (place / name).is_file():
                    found[(place / name).resolve().relative_to(root).as_posix()].add(path.relative_to(root).as_posix())
    return found


def sources_to_check(changed, by):
    """The .cpp files to look at for these changed ones; `by` is what includers() gave."""
    chosen = {path for path in changed if path.endswith(".cpp")}
    for header in (path for path in changed if path.endswith(".h")):
        seen, level = {header}, {header}
        while level and not any(path.endswith(".cpp") for path in level):
            level = set().union(*(by.get(path, set()) for path in level)) - seen
            seen |= level
        chosen |= {path for path in level if path.endswith(".cpp")}
    return sorted(chosen)


def git(root, *words):
    return subprocess.run(["git", *words], cwd=root, check=True, capture_output=True, text=True).stdout.splitlines()


def changed_since(root, base):
    (fork,) = git(root, "merge-base", base, "HEAD")
    return git(root, "diff", "--name-only", fork) + git(root, "ls-files", "--others", "--exclude-standard")


def chosen(root, base):
    everything = [p.relative_to(root).as_posix() for p in sources(root) if p.suffix == ".cpp"]
    changed = changed_since(root, base) if base else [RULES]
    if RULES in changed:
        return everything
    return [path for path in sources_to_check(changed, includers(root)) if path in everything]


def check(path):
    words = ["clang-tidy", "-p", str(ROOT / "build/lint"), "--quiet", path]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    if done.returncode != 0:
        sys.stdout.write(done.stdout + done.stderr)
        sys.stdout.flush()
    return done.returncode == 0


def main():
    paths = chosen(ROOT, sys.argv[1] if len(sys.argv) > 1 else "")
    print(f"clang-tidy: {len(paths)} files", flush=True)
    # The largest first, so that no core waits for it at the end.
    paths.sort(key=lambda path: -(ROOT / path).stat().st_size)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        clean = list(pool.map(check, paths))
    failed = [path for path, good in zip(paths, clean, strict=True) if not good]
    sys.exit(f"clang-tidy: findings in {' '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
