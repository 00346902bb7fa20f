# SPDX-License-Identifier: Apache-2.0
"""The C++ reference: which comment belongs to which name, and that a name without one is found."""

import pathlib
import shutil
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "docs/site"))
import doxygen_filter  # docs/site
import undocumented  # docs/site

HEADER = """\
// SPDX-License-Identifier: Apache-2.0
// A header for this test.
#pragma once

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
    assert lines[6:9] == ["/// Both of them.", "int first();", "/** Both of them. */ int second();"]
    assert "int alone();" in lines


def test_a_comment_behind_a_declaration_may_go_on_below_it():
    lines = doxygen_filter.readable(HEADER.splitlines())
    assert "  /** in elements, at least 1 */ int width = 0, height = 0;" in lines


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
            ("11", "ejk::alone"),
            ("16", "ejk::Type::field"),
            ("19", "ejk::Type::bare"),
            ("27", "ejk::Kind"),
            ("27", "ejk::Kind::a"),
            ("27", "ejk::Kind::b"),
            ("28", "ejk::Known"),
            ("28", "ejk::Known::two"),
        ]
    )
