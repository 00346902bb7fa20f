# SPDX-License-Identifier: Apache-2.0
"""The reference: which comment belongs to which name of C++, and that a name without one, or one of Python, is found."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs/site"))
import doxygen_filter  # docs/site
import public_names  # docs/site
import undocumented  # docs/site

HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// A header for this test.
#pragma once

// Both macros.
#define EJK_ONE 1
#define EJK_TWO(a) a
#define EJK_DETAIL_HIDDEN \\
  3

#define EJK_THREE 3

namespace ejk {

// Both of them.
int first();
int second();

int alone();

// A type, as in
//   Type t;
struct Type {
  int field = 0;
  int width = 0, height = 0;  // in elements,
                              // at least 1
  int bare = 0;
  Type() = default;
  bool operator==(const Type&) const = default;

 private:
  int hidden = 0;
};

enum class Kind { a, b };
enum class Known {
  one,  // explained
  two,
};

namespace detail {
int inner();
}
}  // namespace ejk
"""


def test_a_comment_belongs_to_all_declarations_below_it():
    lines = doxygen_filter.readable(HEADER.splitlines())
    assert len(lines) == len(HEADER.splitlines())  # so that messages name the right line
    assert lines[:2] == ["/// \\file", "/// A header for this test."]
    assert lines[14:17] == ["/// Both of them.", "int first();", "/** Both of them. */ int second();"]
    assert "int alone();" in lines


def test_a_comment_behind_a_declaration_may_go_on_below_it():
    lines = doxygen_filter.readable(HEADER.splitlines())
    assert "  /** in elements, at least 1 */ int width = 0, height = 0;" in lines


def test_macros_of_one_comment_share_it_and_those_of_detail_are_not_shown():
    lines = doxygen_filter.readable(HEADER.splitlines())
    assert lines[4:9] == ["/// Both macros.", "#define EJK_ONE 1", "#define EJK_TWO(a) a  ///< Both macros.", "", ""]


def test_code_in_comments_is_shown_as_it_is():
    assert "/// \\verbatim   Type t; \\endverbatim" in doxygen_filter.readable(HEADER.splitlines())


def test_private_parts_are_not_shown():
    assert not any("hidden" in line for line in doxygen_filter.readable(HEADER.splitlines()))


@pytest.mark.skipif(not shutil.which("doxygen"), reason="doxygen is not installed; make docs installs it")
def test_public_names_without_a_comment_are_found(tmp_path):
    shutil.copytree(ROOT / "docs/site", tmp_path / "docs/site")
    (tmp_path / "include/ejk/ops").mkdir(parents=True)
    (tmp_path / "include/ejk/sample.h").write_text(HEADER)
    (tmp_path / "build/docs").mkdir(parents=True)
    subprocess.run(["doxygen", "docs/site/Doxyfile"], cwd=tmp_path, check=True, timeout=60)
    assert undocumented.undocumented(tmp_path) == sorted(
        ("include/ejk/sample.h:" + line, name)
        for line, name in [
            ("11", "EJK_THREE"),
            ("19", "ejk::alone"),
            ("24", "ejk::Type::field"),
            ("27", "ejk::Type::bare"),
            ("35", "ejk::Kind"),
            ("35", "ejk::Kind::a"),
            ("35", "ejk::Kind::b"),
            ("36", "ejk::Known"),
            ("36", "ejk::Known::two"),
        ]
    )


def test_public_names_of_python_that_are_not_shown_are_found(tmp_path, monkeypatch):
    files = {
        "__init__.py": '__all__ = ["first", "_private"]\ndef first(): pass\ndef _private(): pass\n',
        "more.py": 'from sample_of_ejk import first\n__all__ = ["first", "second", "NUMBER"]\nsecond, NUMBER = first, 1\n',
        "_hidden.py": '__all__ = ["third"]\nraise AssertionError("is not imported")\n',
        "bare.py": "def third(): pass\n",
    }
    (tmp_path / "sample_of_ejk").mkdir()
    for name, text in files.items():
        (tmp_path / "sample_of_ejk" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    import sample_of_ejk

    shown = {"sample_of_ejk", "sample_of_ejk.first", "sample_of_ejk.more"}
    missing = public_names.not_shown(sample_of_ejk, shown)
    assert missing == ["sample_of_ejk.bare", "sample_of_ejk.more.second", "sample_of_ejk.more.NUMBER"]
    shown |= set(missing)
    assert public_names.not_shown(sample_of_ejk, shown) == []
