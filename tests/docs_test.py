# SPDX-License-Identifier: Apache-2.0
"""The documents against the tree: files, links, code and environment variables they name exist."""

import pathlib
import re
import textwrap

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGES = sorted(ROOT.glob("docs/**/*.md"))
DOCUMENTS = sorted([*ROOT.glob("*.md"), *PAGES])
SUFFIXES = {".h", ".cpp"}


def sources(folder):
    return [path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in SUFFIXES]


def section(text, title):
    """The text under the heading that begins so, up to the next one of its level or above."""
    level = title.split()[0]
    begin = text.index(f"\n{title}")
    end = re.compile(rf"(?m)^#{{1,{len(level)}}} ").search(text, begin + len(title) + 1)
    return text[begin : end.start() if end else None]


def test_architecture_names_every_folder_of_the_library_and_no_other():
    text = section((ROOT / "ARCHITECTURE.md").read_text(), "## The rooms")
    named = set(re.findall(r"(?m)^\| `([\w/]+)/` \|", text))
    assert all((ROOT / name).is_dir() for name in named)
    folders = {str(path.relative_to(ROOT)) for path in (ROOT / "src").iterdir()}
    assert {name for name in named if name.startswith("src/")} == folders


def test_files_that_architecture_names_exist():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    for name in re.findall(r"`([\w/]+/\w+\.(?:h|cpp|py))`", text):
        assert any((ROOT / place / name).exists() for place in ("", "src", "include/ejk", "python")), name


@pytest.mark.parametrize("folder", ["include", "src", "cli", "python"])
def test_every_file_says_what_it_is_in_its_second_line(folder):
    assert sources(folder)
    for path in sources(folder):
        second = path.read_text().splitlines()[1]
        beside_its_header = path.suffix == ".cpp" and path.with_suffix(".h").exists()
        assert second.startswith("// ") or beside_its_header, path


def test_no_source_decides_by_a_word_that_has_a_type():
    words = set(re.findall(r'"([\w ]+)"', (ROOT / "include/ejk/names.h").read_text()))
    assert {"measured", "timed_out", "wall", "autotune_finish", "persistent"} <= words
    words -= {"autotune", "heuristics"}  # words of policies too
    compared = re.compile(r'(?:[=!]= |starts_with\(|ends_with\()"([\w ]+)"')
    wrong = []
    for path in [*sources("src"), *sources("cli"), *sources("python")]:
        wrong += [f"{path.name}: {word}" for word in compared.findall(path.read_text()) if word in words]
    assert wrong == []


# What a test waits for is a condition with a deadline (tests/wait.h, wait_for in tests/cli/tool.py). Who may sleep, and why.
MAY_SLEEP = {
    "tests/wait.h": "looks again until the deadline",
    "tests/cli/tool.py": "looks again until the deadline",
    "tests/call/warm_table_test.cpp": "widens the time between a find and its use",
    "tests/concurrency/store_processes_test.cpp": "kills at random moments; stays in what only one may enter",
    "tests/faults/guard_faults_test.cpp": "a process that is to be ended",
    "tests/faults/postgres_faults_test.cpp": "the wait that a deadline is compared with",
    "tests/guard/guard_test.cpp": "a run that lasts",
    "tests/plugins/bad.cpp": "a run that does not end",
    "tests/plugins/slow.cpp": "a run that lasts",
    "tests/postgres_server.py": "looks again until the deadline",
    "tests/tune/race_test.cpp": "what a stopwatch must see",
    "tests/tune/tuning_test.cpp": "what a benchmark must see",
    "python/tests/fleet/test_ray.py": "looks again until the deadline, in two processes",
    "python/tests/test_chain.py": "a run that lasts; looks again in another process, which has a deadline",
    "python/tests/test_compile_only.py": "a run that does not end",
    "python/tests/test_idle.py": "a run that lasts",
    "python/tests/test_names.py": "what a benchmark must see",
    "python/tests/test_package.py": "ends programs at several moments",
    "python/tests/test_ranks.py": "looks again until the deadline, in another process",
    "python/tests/test_worker.py": "runs that last; looks again until the deadline",
}


def test_tests_wait_for_conditions_and_do_not_sleep():
    sleeping = re.compile(r"\b(?:sleep_for|sleep_until|u?sleep|nanosleep|sched_yield)\((?!0\))|this_thread::(?:yield)")
    files = [p for folder in ("tests", "python/tests") for p in sorted((ROOT / folder).rglob("*"))]
    texts = {p.relative_to(ROOT).as_posix(): p.read_text() for p in files if p.suffix in {".h", ".cpp", ".py"}}
    assert {path for path, text in texts.items() if sleeping.search(text)} == set(MAY_SLEEP)


def test_folders_include_private_headers_of_earlier_layers_only():
    text = section((ROOT / "ARCHITECTURE.md").read_text(), "## The layers")
    (line,) = re.findall(r"(?m)^`base` < .*$", text)
    layer = {name: i for i, names in enumerate(line.split("<")) for name in re.findall(r"`(\w+)`", names)}
    assert set(layer) == {path.name for path in (ROOT / "src").iterdir()}
    wrong = []
    for path in sources("src"):
        own = path.relative_to(ROOT / "src").parts[0]
        for name in re.findall(r'(?m)^#include "(\w+)/', path.read_text()):
            if name in layer and name != own and layer[name] >= layer[own]:
                wrong.append(f"{path.relative_to(ROOT)} includes {name}/")
    assert not wrong


def test_public_headers_open_the_namespace_for_export():
    for path in sources("include"):
        opened = re.findall(r"(?m)^namespace (.*) \{$", path.read_text())
        assert not [name for name in opened if name.startswith("ejk")], path
        assert opened[:1] == ["EJK_EXPORT ejk"] or path.name in ("ejk.h", "export.h"), path


def code_blocks(document, language):
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```", document.read_text())


def test_the_first_example_of_the_readme_is_the_first_example():
    source = (ROOT / "examples/01_first_kernel.cpp").read_text()
    without_header = source.split("\n", 2)[2]
    assert code_blocks(ROOT / "README.md", "cpp") == [without_header]


def test_all_code_of_the_pages_is_compiled():
    tests = ROOT.glob("tests/**/guide_test.cpp")
    sources = [*tests, *ROOT.glob("examples/*.cpp"), ROOT / "examples/kernels.h"]
    by_another_test = ROOT / "docs/tutorials/recording_to_shipping.md"  # tests/cli/documents_test.py

    def bare(text):
        return "\n".join(line.strip() for line in textwrap.dedent(text).strip().splitlines() if line.strip())

    compiled = [bare(source.read_text()) for source in sources]
    blocks = [block for page in PAGES if page != by_another_test for block in code_blocks(page, "cpp")]
    assert len(blocks) > 40
    for block in blocks:
        assert any(bare(block) in text for text in compiled), block


def test_every_public_header_has_its_place_in_the_reference():
    shown = []
    for page in ROOT.glob("docs/reference/cpp/*.md"):
        shown += re.findall(r"(?m)^## `(ejk/\S+)`\n\n```{doxygenfile} (\S+)$", page.read_text())
    assert all(header.rpartition("/")[2] == name for header, name in shown)
    headers = [path for folder in ("", "ops") for path in (ROOT / "include/ejk" / folder).glob("*.h")]
    of_others = {"ejk/ejk.h", "ejk/ops.h"}  # which only include others
    assert sorted(header for header, _ in shown) == sorted(
        {str(path.relative_to(ROOT / "include")) for path in headers} - of_others
    )


def anchors(document):
    """Of the headings of a page, as the site and the places that show the repository name them."""
    text = re.sub(r"(?ms)^```.*?^```", "", document.read_text())
    return {
        re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in re.findall(r"(?m)^#+ (.*)$", text)
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(document):
    text = re.sub(r"(?ms)^```.*?^```", "", document.read_text())
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        file, _, anchor = target.partition("#")
        place = document.parent / file if file else document
        assert place.exists(), target
        if anchor:
            assert anchor in anchors(place), target


def test_every_row_about_security_has_its_test_or_says_that_there_is_none():
    globs = ("tests/**/*_test.cpp", "tests/**/*_test.py", "python/tests/*.py")
    sources = "".join(path.read_text() for glob in globs for path in ROOT.glob(glob))
    known = {".".join(name) for name in re.findall(r"\bTEST(?:_F|_P)?\((\w+), (\w+)\)", sources)}
    known |= set(re.findall(r"(?m)^def (test_\w+)", sources))
    text = (ROOT / "SECURITY.md").read_text()
    rows = [row for row in re.findall(r"(?m)^\|.*\| (.*) \|$", text) if row.strip(" |-")]
    assert len(rows) > 10
    for row in rows:
        assert row == "no test" or "`" in row, row
    named = set(re.findall(r"`([A-Z]\w+\.[A-Z]\w+|test_\w+)`", text))
    assert named and named <= known, named - known


def variables_of_the_library():
    page = (ROOT / "docs/reference/environment.md").read_text().partition("\n## ")[0]
    return set(re.findall(r"(?m)^\| `(EJKERNEL_\w+)` \|", page))


def test_every_environment_variable_is_in_the_reference_and_no_other():
    used = set()
    for folder in ("src", "include"):
        for path in (ROOT / folder).rglob("*.cpp"):
            used |= set(re.findall(r'"(EJKERNEL_\w+)"', path.read_text()))
    assert variables_of_the_library() == used


def test_every_environment_variable_of_a_part_is_in_the_reference_and_no_other():
    used = set()
    for path in [*(ROOT / "src").rglob("*.cpp"), *(ROOT / "python/ejk").rglob("*.py"), ROOT / "python/ejk.pth"]:
        used |= set(re.findall(r"""["'](EJK(?:ERNEL)?_[A-Z_]+)["']""", path.read_text()))
    page = (ROOT / "docs/reference/environment.md").read_text().partition("\n## ")[2]
    rows = "\n".join(row.split("|")[1] for row in re.findall(r"(?m)^\| `EJK.*", page))
    assert set(re.findall(r"`(EJK\w+)`", rows)) == used - variables_of_the_library()


def test_ejk_doctor_knows_the_environment_variables_of_the_reference_and_no_other():
    known = set(re.findall(r'"(EJKERNEL_\w+)"', (ROOT / "cli/doctor.cpp").read_text()))
    page = (ROOT / "docs/reference/environment.md").read_text()
    assert known == set(re.findall(r"(?m)^\| `(EJKERNEL_\w+)` \|", page))


@pytest.mark.parametrize("number", ["01", "02", "03", "04", "05"])
def test_examples_are_short(number):
    (example,) = ROOT.glob(f"examples/{number}_*.cpp")
    assert len(example.read_text().splitlines()) < 60


def test_every_debian_package_is_explained():
    lines = (ROOT / "apt.txt").read_text().splitlines()
    wanted = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    rows = re.findall(r"(?m)^\|[^|]*\|([^|]*)\|", (ROOT / "docs/reference/dependencies.md").read_text())
    explained = {name for cell in rows for name in re.findall(r"`([a-z][\w+-]*)`", cell)}
    assert wanted == explained
