# SPDX-License-Identifier: Apache-2.0
"""The command line itself: help, completion, wrong lines."""

import os
import re
import subprocess

import pytest
from tool import KEY, TOOL, VERBS, entry, exported, on_terminal


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help_and_json(ejk, verb):
    text = ejk(*verb.split(), "--help").stdout
    assert "--json" in text and "--wide" in text and "Usage" in text
    assert [line for line in text.splitlines() if len(line) > 80] == []


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_an_example_that_uses_options_it_has(ejk, verb):
    text = ejk(*verb.split(), "--help").stdout
    example = re.search(r"Example:\n  (ejk .+)\n", text).group(1)
    assert example.startswith(f"ejk {verb}")
    assert set(re.findall(r" (--[\w-]+)", example)) <= set(re.findall(r"(?m)^  (--[\w-]+)", text))
    assert example in ejk("manual").stdout.replace("\\-", "-")


def test_help_is_as_wide_as_the_terminal(tmp_path):
    def lines(columns):
        return on_terminal(f"{TOOL} tune --help", columns).splitlines()

    assert max(map(len, lines(70))) <= 70 and 120 >= max(map(len, lines(120))) > 80


def test_help_names_every_verb_and_the_manual_every_verb_and_option(ejk):
    text = ejk("--help").stdout
    manual = ejk("manual").stdout.replace("\\-", "-")
    for verb in VERBS:
        assert verb.split()[0] in text
        assert f'.SS "ejk {verb}"' in manual
        section = manual.split(f'.SS "ejk {verb}"')[1].split(".SS")[0].split(".SH")[0]
        for option in re.findall(r"(?m)^  (--[\w-]+)", ejk(*verb.split(), "--help").stdout):
            assert option in section, (verb, option)
    for code in ["0", "1", "2", "3", "4", "130", "141"]:
        assert f".B {code}\n" in manual


def test_the_manual_is_good_roff(ejk, tmp_path):
    manual = tmp_path / "ejk.1"
    manual.write_text(ejk("manual").stdout)
    try:
        checked = subprocess.run(
            ["groff", "-man", "-Tutf8", "-ww", manual], capture_output=True, text=True, timeout=60
        )
    except FileNotFoundError:
        pytest.skip("groff is not installed")
    assert checked.returncode == 0 and checked.stderr == ""
    assert "EXIT STATUS" in re.sub(".\x08", "", checked.stdout)


def test_completion_knows_verbs_and_options(ejk, tmp_path):
    script = tmp_path / "ejk.bash"
    script.write_text(ejk("completion", "bash").stdout)

    def complete(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = f". {script}; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _ejk; echo ${{COMPREPLY[@]}}"
        return subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True).stdout.split()

    assert complete("ejk", "do") == ["doctor"]
    assert set(complete("ejk", "")) >= {verb.split()[0] for verb in VERBS}
    assert complete("ejk", "ls", "--st") == ["--store"]
    assert {"ls", "clear"} <= set(complete("ejk", "quarantine", ""))
    assert "--store" not in complete("ejk", "quarantine", "l")
    assert ejk("completion", "bash", "--json").json["text"] == script.read_text()
    for shell in ["zsh", "fish"]:
        assert "what-if" in ejk("completion", shell).stdout
    assert "tcsh" in ejk("completion", "tcsh", expect=2).stderr


def test_completion_knows_files_ops_keys_and_shells(ejk, store, tmp_path):
    (tmp_path / "ejk").symlink_to(TOOL)
    (tmp_path / "folder").mkdir()
    (tmp_path / "file.hlo").write_text("")
    (tmp_path / "ejk.bash").write_text(ejk("completion", "bash").stdout)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EJKERNEL_PERSISTENT_CACHE_DIR": str(store)}

    def complete(*words):
        line = " ".join(f"'{word}'" for word in words)
        code = f". ./ejk.bash; COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _ejk; echo ${{COMPREPLY[@]}}"
        run = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
        assert run.stderr == ""
        return run.stdout.split()

    assert complete("ejk", "ls", "--store", "fo") == ["folder"]
    assert "file.hlo" not in complete("ejk", "ls", "--store", "")
    assert complete("ejk", "labels", "fi") == ["file.hlo"]
    assert complete("ejk", "tune", "--lowered", "fi") == ["file.hlo"]
    assert complete("ejk", "show", KEY[:6]) == [KEY]
    assert complete("ejk", "ls", "--op", "no") == complete("ejk", "ls", "no") == ["norm@v2"]
    assert complete("ejk", "completion", "") [-3:] == ["bash", "zsh", "fish"]
    assert complete("ejk", "tune", "--budget", "") == []


@pytest.mark.parametrize("line, code", [("show abc", 3), ("lss", 2), ("prune", 2), ("ls --budget", 2), ("ls --store /nothing", 3)])
def test_with_json_an_error_is_a_document_too(ejk, line, code):
    result = ejk(*line.split(), "--json", expect=code)
    assert list(result.json) == ["error"] and result.json["error"] in result.stderr


@pytest.mark.parametrize(
    "line, says",
    [
        ("", "ejk needs a verb"),
        ("lss", "did you mean ls?"),
        ("qqqqqqqq", "no verb"),
        ("ls --no-such-option", "--no-such-option"),
        ("show", "ejk show needs KEY: The first digits of a key, OP:KEY, OP: for all of an op, or a label"),
        ("import", "ejk import needs FILE: "),
        ("merge a", "ejk merge needs FROM: Stores or exports"),
        ("completion", "ejk completion needs SHELL: bash, zsh or fish"),
        ("--store x ls", "options follow the verb: ejk ls --store x"),
        ("-x", "options follow the verb"),
        ("show abc --candidates -1", "--candidates"),
        ("prune", "--older-than"),
        ("prune --older-than soon", "--older-than: got soon; expected a number followed by h, d or w, such as 30d"),
        ("quarantine clear", "--all"),
        ("quarantine", "subcommand: ls clear"),
        ("quarantine frob", 'no verb "frob" (ejk quarantine has: ls clear)'),
        ("store chekc", "did you mean check?"),
        ("ls --stroe x", "ejk ls has no option --stroe; did you mean --store?"),
        ("tune --recorded --budgt=3", "ejk tune has no option --budgt; did you mean --budget?"),
        ("snapshot fetch 3 --no-such-option", "ejk snapshot fetch has no option --no-such-option (ejk snapshot fetch --help says more)"),
        ("store check http://h/d", "expected the URL of a database"),
        ("store check postgresql://h/d?nonsense=1", "nonsense"),
        ("ls --store postgresql://h/d?nonsense=1", "nonsense"),
        ("snapshot fetch choices", "expected the 64 hex digits of its SHA-256"),
        ("snapshot show place#3", "expected the 64 hex digits of its SHA-256"),
        ("tune --recorded --budget -1", "--budget: got -1; expected a number >= 0"),
        ("tune --recorded --budget nan", "--budget: got nan; expected a number >= 0"),
        ("tune --recorded --budget inf", "--budget: got inf; expected a number >= 0"),
        ("bench --seconds 0", "--seconds: got 0; expected a number > 0"),
        ("what-if --min-coverage 101", "--min-coverage: got 101; expected a number from 0 to 100"),
        ("tune --lowered f --dry-run", "--dry-run needs --recorded"),
        ("tune --recorded --serve --dry-run", "--serve cannot be used with"),
        ("tune matmul --listen 127.0.0.1:0", "--serve"),
        ("serve --listen 127.0.0.1", "--listen: got 127.0.0.1; expected ADDRESS:PORT"),
        ("serve --listen example.org:80", "--listen: got example.org:80; expected ADDRESS:PORT"),
        ("tune matmul", "0 arguments are given and run takes"),
        ("tune matmul", "--arg f32[512,512]"),
        ("tune softmax --arg f32[4,8] --arg foo --arg f32[4,8]", "Softmax<float>: argument 1, a"),
        ("tune softmax --arg f32[4,8] --arg foo --arg f32[4,8]", "argument 0, a"),
        ("tune softmax --arg f32[4,8 --arg 1 --arg f32[4,8]", "no ']'"),
        ("tune", "--recorded"),
        ("tune --recorded --lowered f", "--recorded"),
        ("tune --arg f32[2] --recorded", "--arg"),
        ("doctor --seconds -1", "--seconds"),
        ("merge a a", "into itself"),
        ("show :", "is not a key"),
    ],
)
def test_wrong_command_lines_are_refused_with_a_word(ejk, line, says):
    result = ejk(*line.split(), expect=2)
    assert says in result.stderr and result.stdout == ""


def test_an_option_that_may_be_repeated_takes_one_word_each_time(ejk, plugin):
    arguments = ["--arg", "f32[16]", "--arg", "f32[16]"]
    for line in [[*plugin, "plugin.shifted", *arguments], [*arguments, "plugin.shifted", *plugin]]:
        assert len(ejk("tune", *line, "--json").json["tuned"]) == 1
    assert "not expected: gemm" in ejk("report", "r.html", "--op", "norm", "gemm", expect=2).stderr


def test_version(ejk):
    assert re.fullmatch(r"ejk \d+\.\d+\.\d+\n", ejk("--version").stdout)


def test_completion_runs_nothing_that_stands_in_names(ejk, device, tmp_path):
    (tmp_path / "ejk").symlink_to(TOOL)
    (tmp_path / "a$(touch${IFS}by_file)").write_text("")
    ejk("import", exported(tmp_path / "e", entry(device, op="x$(touch${IFS}by_op)@v1")))
    (tmp_path / "ejk.bash").write_text(ejk("completion", "bash").stdout)
    env = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EJKERNEL_PERSISTENT_CACHE_DIR": str(tmp_path / "store")}
    for words in ["ejk import a", "ejk ls x"]:
        code = f". ./ejk.bash; COMP_WORDS=({words}); COMP_CWORD=2; _ejk; echo ${{#COMPREPLY[@]}}"
        run = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path, env=env)
        assert run.stdout == "1\n"
    assert not (tmp_path / "by_file").exists() and not (tmp_path / "by_op").exists()
