"""tools/mutants.py: which mutants it makes, which tests it chooses, what it reports."""

import ast
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile
import textwrap
import time

from absl.testing import absltest, parameterized

SCRIPT = pathlib.Path(__file__).resolve().parent.parent / "tools" / "mutants.py"


def load():
    """Returns the script as a module, or None where it cannot be used."""
    if not SCRIPT.is_file() or not hasattr(ast, "unparse"):
        return None
    spec = importlib.util.spec_from_file_location("mutants", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    sys.modules["mutants"] = module  # Where dataclasses look for it.
    spec.loader.exec_module(module)
    return module


mutants = load()
needs_script = absltest.skipIf(
    mutants is None, "needs tools/mutants.py, and Python 3.9 or newer to write syntax trees"
)


def changes(source):
    """Returns [(kind, mutated source)] of a snippet, both as unparsed text."""
    source = textwrap.dedent(source).strip() + "\n"
    return [
        (mutant.kind, mutants.mutated(source, mutant).strip())
        for mutant in mutants.mutants_of(source, "m")
    ]


def names(source):
    return [mutant.name for mutant in mutants.mutants_of(textwrap.dedent(source), "m")]


@needs_script
class MakingTest(parameterized.TestCase):
    @parameterized.parameters(
        ("y = a < b", [("comparison", "y = a <= b"), ("comparison", "y = a >= b")]),
        ("y = a >= b", [("comparison", "y = a > b"), ("comparison", "y = a < b")]),
        ("y = a == b", [("comparison", "y = a != b")]),
        ("y = a is not None", [("comparison", "y = a is None")]),
        ("y = a not in b", [("comparison", "y = a in b")]),
        (
            "y = a is b is c",
            [("comparison", "y = a is not b is c"), ("comparison", "y = a is b is not c")],
        ),
        ("y = a * b", [("operator", "y = a / b")]),
        ("y = a - b", [("operator", "y = a + b")]),
        ("y = -a", [("operator", "y = a")]),
        ("y = a + [b]", [("operator", "y = a"), ("operator", "y = [b]")]),
        ("y += a", [("operator", "y -= a"), ("statement", "pass")]),
        ("y = a and b", [("condition", "y = a or b")]),
        ("y = not a", [("condition", "y = a")]),
        ("y = a if c else b", [("condition", "y = a if not c else b")]),
        ("y = a if c is b else b", [("comparison", "y = a if c is not b else b")]),
        ("y = [a for a in b if a]", [("condition", "y = [a for a in b]")]),
        ("y = 0.8", [("constant", "y = 1.8")]),
        ("y = True", [("constant", "y = False")]),
        ("y = 'loss_scale'", [("constant", "y = 'l_oss_scale'")]),
        ("y = f(a, k=b)", [("argument", "y = f(a)")]),
        ("y = f(a, b, c)", [("argument", "y = f(b, a, c)")]),
        ("y = tf.where(a, b, c)", [("argument", "y = tf.where(a, c, b)")]),
        ("y = tf.maximum(a, b)", [("function", "y = tf.minimum(a, b)")]),
        ("y = any(a)", [("function", "y = all(a)")]),
        ("y = tf.cast(a, b)", [("argument", "y = tf.cast(b, a)"), ("function", "y = a")]),
        ("f(a)", [("statement", "pass")]),
        ("raise ValueError(f'{a} of 2 is {not b}')", [("statement", "pass")]),
    )
    def test_exactly_these(self, source, expected):
        self.assertEqual(changes(source), expected)

    @parameterized.parameters(
        '"""Docstring of f(1) < 2."""',
        "from a import b",
        "y: Dict[str, 2]",
        "def f(a: 'x') -> 'y': return a",
        "__all__ = ['a', 'b']",
        "def __repr__(self): return 'a' + str(1 < self.b)",
        "y = 'Must be at least one.'",
        "y = f'{a + 1}'",
        "y = a(*b, **c)",
        "y = isinstance(a, b)",
        "y = functools.lru_cache(maxsize=None)",
        "y = functools.lru_cache(maxsize=32)",
        "y = 'name of two' + a",
        "y = tf.group(a, a)",
        "y = f(a, a)",
        "y = State(a=b, c=d)",
        "y = a.format(b, 1)",
        "y = None",
    )
    def test_not_these(self, source):
        self.assertEqual(changes(source), [])

    def test_log_messages_stay_and_whether_they_are_written_does_not(self):
        self.assertEqual(changes("logging.warning('a', 1)"), [("statement", "pass")])

    def test_condition_of_a_block(self):
        source = """
            if a:
                f()
        """
        self.assertEqual(
            changes(source),
            [("condition", "if not a:\n    f()"), ("statement", "if a:\n    pass")],
        )

    def test_context_left_out(self):
        source = """
            with agreed():
                y = a
        """
        self.assertEqual(changes(source), [("statement", "if True:\n    y = a")])
        self.assertEqual(changes(source.replace("():", "() as b:")), [])

    def test_each_mutant_differs_and_compiles(self):
        path = mutants.find_modules()["loss_scale"]
        source = path.read_text(encoding="utf-8")
        found = mutants.mutants_of(source, "loss_scale")
        plain = ast.unparse(ast.parse(source))
        self.assertGreater(len(found), 50)
        self.assertLen({mutant.name for mutant in found}, len(found))
        for mutant in found[::10]:
            text = mutants.mutated(source, mutant)
            compile(text, "loss_scale.py", "exec")
            self.assertNotEqual(text.strip(), plain.strip(), mutant.name)

    def test_names_say_where_and_what(self):
        source = """
            class A:
                def f(self, a=1):
                    self.g(a > 2)
        """
        self.assertEqual(
            names(source),
            [
                "m.A.f: constant `1` -> `2` in `def f(self, a=1):`",
                "m.A.f: statement `self.g(a > 2)` removed",
                "m.A.f: comparison `a > 2` -> `a >= 2` in `self.g(a > 2)`",
                "m.A.f: comparison `a > 2` -> `a <= 2` in `self.g(a > 2)`",
                "m.A.f: constant `2` -> `3` in `self.g(a > 2)`",
            ],
        )

    def test_names_do_not_depend_on_lines_above(self):
        source = "def f():\n    return a + 1, a + 1\n"
        self.assertEqual(names(source), names("import b\n\nc = None\n\n" + source))
        self.assertEndsWith(names(source)[-1], " #2")

    def test_lines(self):
        source = textwrap.dedent(
            """\
            LIMIT = 3
            def f(
                a=2,
            ):
                if (
                    a
                ):
                    return g(
                        a,
                        k=7,
                    )
                return LIMIT
            """
        )
        found = {m.name.partition(": ")[2]: m for m in mutants.mutants_of(source, "m")}
        limit = found["constant `3` -> `4` in `LIMIT = 3`"]
        self.assertTrue(limit.at_import)
        self.assertEqual(limit.used, {1, 12})
        default = found["constant `2` -> `3` in `def f(a=2):`"]
        self.assertTrue(default.at_import)
        self.assertEqual((default.line, default.used), (3, set(range(5, 13))))
        condition = found["condition `if a:` -> `if not a:`"]
        self.assertFalse(condition.at_import)
        self.assertEqual(condition.lines, range(5, 8))
        constant = found["constant `7` -> `8` in `return g(a, k=7)`"]
        self.assertEqual((constant.lines, constant.around), (range(10, 11), range(8, 12)))


def facts(seconds, *lines):
    return {"seconds": seconds, "lines": {"m": list(lines), "other": [1, 2, 3]}}


@needs_script
class ChoosingTest(parameterized.TestCase):
    def mutant(self, source, name):
        source = textwrap.dedent(source)
        (found,) = (m for m in mutants.mutants_of(source, "m") if name in m.name)
        return found

    def choose(self, mutant, tests, budget=100.0, slowest=10.0):
        return mutants.choose(mutant, tests, budget, slowest)

    def test_who_reaches_the_line_then_the_others_of_the_class_by_time(self):
        mutant = self.mutant("def f():\n    g()\n    return a < b", "`a <= b`")
        tests = {
            "t.py::A::test_slow": facts(3.0, 2, 3),
            "t.py::A::test_elsewhere": facts(0.1, 2),
            "t.py::A::test_quick": facts(1.0, 3),
            "t.py::B::test": facts(0.1, 2),
        }
        chosen = ["t.py::A::test_quick", "t.py::A::test_slow", "t.py::A::test_elsewhere"]
        self.assertEqual(self.choose(mutant, tests), (chosen, 0))

    def test_nothing_reaches_the_line(self):
        mutant = self.mutant("def f():\n    g()\n    return a < b", "`a <= b`")
        self.assertEqual(self.choose(mutant, {"t.py::test": facts(0.1, 2)}), ([], 0))

    def test_budget_and_slowest(self):
        mutant = self.mutant("def f():\n    return a < b", "`a <= b`")
        tests = {f"t.py::test{second}": facts(float(second), 2) for second in (1, 2, 3, 20)}
        chosen = ["t.py::test1", "t.py::test2"]
        self.assertEqual(self.choose(mutant, tests, budget=4.0), (chosen, 1))

    def test_a_constant_without_a_line_is_reached_with_its_statement(self):
        mutant = self.mutant("def f():\n    return (\n        1,\n    )", "constant")
        tests = {"t.py::test": facts(0.1, 2), "t.py::test_other": facts(0.1, 7)}
        self.assertEqual(self.choose(mutant, tests)[0][0], "t.py::test")

    def test_at_import_users_first_then_all_of_the_module(self):
        mutant = self.mutant("LIMIT = 3\ndef f():\n    return LIMIT\ndef g():\n    h()", "`4`")
        tests = {
            "a.py::test_g": facts(0.1, 5),
            "b.py::test_f": facts(5.0, 3),
            "c.py::test_no_line": facts(0.1),
        }
        self.assertEqual(self.choose(mutant, tests)[0], ["b.py::test_f", "a.py::test_g"])

    def test_one_file_is_run_before_the_others_are_collected(self):
        many = [f"tests/many_test.py::test{index}" for index in range(30)]
        own = ["tests/rule_test.py::test_b", "tests/rule_test.py::test_a"]
        tests = [many[0], *own, *many[1:]]
        self.assertEqual(mutants.rounds("keras._rule", tests), [own, many])
        first, rest = mutants.rounds("m", tests)
        self.assertEqual(first, many[: mutants.FIRST_TESTS])
        self.assertCountEqual(rest, {*tests} - {*first})
        self.assertEqual(mutants.rounds("m", own), [own])

    def test_samples_are_the_same_for_a_seed(self):
        population = list(range(100))
        sample = mutants.sampled(population, 10, 7)
        self.assertLen(sample, 10)
        self.assertLen(set(sample), 10)
        self.assertNotEqual(sample, sorted(sample))
        self.assertEqual(sample, mutants.sampled(population, 10, 7))
        self.assertNotEqual(set(sample), set(mutants.sampled(population, 10, 8)))
        self.assertCountEqual(mutants.sampled(population, 500, 7), population)
        self.assertEqual(mutants.sampled(population, None, 7), population)


def result(state, line=1, by="", left_out=0):
    return {
        "module": "m",
        "file": "m.py",
        "line": line,
        "kind": "operator",
        "state": state,
        "by": by,
        "ran": 5,
        "left_out": left_out,
    }


@needs_script
class ReportingTest(parameterized.TestCase):
    def test_states(self):
        self.assertEqual(mutants.judge(None)[0], "timed out")
        self.assertEqual(mutants.judge({"crashed": -11})[0], "killed")
        self.assertEqual(mutants.judge({"code": 0, "failed": None})[0], "survived")
        self.assertEqual(mutants.judge({"code": 1, "failed": "t"}), ("killed", "t"))
        unclear = [{"code": c, "failed": None} for c in (1, 2, 3, 4, 5)]
        unclear += [{"error": "E: x"}, {"crashed": 0}, {"crashed": -9}]
        for outcome in unclear:
            self.assertEqual(mutants.judge(outcome)[0], "not judged")

    def test_score(self):
        results = {
            "a": result("killed"),
            "b": result("timed out"),
            "c": result("survived"),
            "d": result("unreached"),
            "e": result("survived"),
            "f": result("not judged"),
        }
        counts = {
            "killed": 1,
            "timed out": 1,
            "survived": 1,
            "unreached": 1,
            "explained": 1,
            "not judged": 1,
        }
        self.assertEqual(mutants.summary(results, {"e": "why"}), (counts, 50.0))
        self.assertEqual(mutants.summary({}, {}), ({}, None))

    def test_report(self):
        results = {
            "m.f: killed one": result("killed"),
            "m.f: survivor": result("survived", line=9, left_out=2),
            "m.f: unreached one": result("unreached", line=8),
            "m.f: explained one": result("survived"),
        }
        told = mutants.report(results, {"m.f: explained one": "why"}, set(results))
        self.assertEqual(
            told,
            "m.py:8: unreached\n    m.f: unreached one\n"
            "m.py:9: survived\n    m.f: survivor\n"
            "    5 tests passed, 2 were left out for their time\n"
            "survived, by kind: 1 operator\nunreached, by kind: 1 operator\n"
            "m: 1 explained, 1 killed, 1 survived, 1 unreached; score 33.3\n"
            "all: 1 explained, 1 killed, 1 survived, 1 unreached; score 33.3\n",
        )

    def test_stale_explanations(self):
        results = {"now killed": result("killed", by="t.py::test"), "still": result("survived")}
        explained = {"gone": "why", "now killed": "why", "still": "why", "not run": "why"}
        all_names = {"now killed", "still", "not run"}
        self.assertEqual(
            mutants.stale(explained, all_names, results),
            {"gone": "there is no such mutant", "now killed": "it is killed: t.py::test"},
        )
        told = mutants.report(results, explained, all_names)
        self.assertIn("stale explanation: it is killed: t.py::test\n    now killed\n", told)
        # An explanation that is stale takes nothing away from the score.
        self.assertIn("all: 1 explained, 1 killed; score 100.0\n", told)

    def test_explanations_are_read(self):
        text = "# A comment.\n\nm.f: a `1`\n    No test\n    can see it.\nm.g: b\n    Nor this.\n"
        self.assertEqual(
            mutants.read_explained(text),
            {"m.f: a `1`": "No test can see it.", "m.g: b": "Nor this."},
        )
        with self.assertRaisesRegex(ValueError, "no reason is given for m.f"):
            mutants.read_explained("m.f: a\nm.g: b\n    why\n")
        with self.assertRaisesRegex(ValueError, "line 1 gives a reason"):
            mutants.read_explained("    why\n")

    def test_the_repository_s_explanations_are_of_mutants_that_there_are(self):
        if not mutants.EXPLAINED.is_file():
            self.skipTest("none are written yet")
        explained = mutants.read_explained(mutants.EXPLAINED.read_text(encoding="utf-8"))
        every = set()
        for module, path in mutants.find_modules().items():
            found = mutants.mutants_of(path.read_text(encoding="utf-8"), module)
            every.update(mutant.name for mutant in found)
        self.assertEqual(mutants.stale(explained, every, {}), {})

    def test_modules(self):
        found = mutants.find_modules()
        for module in ("_update_rule", "loss_scale", "keras._shared"):
            self.assertIn(module, found)
        self.assertNotIn("keras.__init__", found)
        self.assertEqual(list(mutants.find_modules(["keras/_shared.py"])), ["keras._shared"])
        with self.assertRaisesRegex(SystemExit, "there is no module 'absent'"):
            mutants.find_modules(["absent"])


PACKAGE = {
    "small/__init__.py": "",
    "small/rule.py": """\
        import functools

        LIMIT = 10

        def grow(scale):
            if scale > LIMIT:
                return scale
            return scale * 2

        def forget(cache):
            cache.clear()
            cache.update(a=1)

        def opened(event):
            event.set()
            return event.wait()

        @functools.lru_cache(maxsize=None)
        def shared(n):
            return n + 5

        def unused():
            return 1
        """,
    "tests/__init__.py": "",
    # A test of another file has run when `late_test` is collected.
    "tests/replicas.py": "from small import started; assert not started.YET",
    "small/started.py": "YET = []",
    "tests/late_test.py": """\
        from small import rule
        from tests import replicas

        def test_forget():
            rule.forget({})
        """,
    "tests/rule_test.py": """\
        import threading

        from small import rule, started

        def setup_module():
            started.YET.append(True)

        class TestGrow:
            def test_far_from_the_limit(self):
                assert rule.grow(4) == 8
                assert rule.grow(30) == 30

            def test_is_broken_and_says_nothing(self):
                assert rule.grow(4) == 7

        def test_forget():
            cache = {}
            rule.forget(cache)
            assert cache

        def test_opened():
            assert rule.opened(threading.Event())

        def test_first_to_share():
            assert rule.shared(1)

        def test_second_to_share():
            assert rule.shared(1) == 6
        """,
}

DRIVER = """\
import pathlib, sys
sys.path[:0] = [{folder!r}]
import mutants
mutants.ROOT = pathlib.Path.cwd()
mutants.PACKAGE = "small"
mutants.MODULES = ("*.py",)
mutants.preload = lambda: None
mutants.BLOCKED_SECONDS = 5
sys.exit(mutants.main(sys.argv[1:]))
"""


@needs_script
@absltest.skipIf(sys.version_info < (3, 12), "mutants are run on Python 3.12 or newer")
class RunningTest(parameterized.TestCase):
    """The whole way, on a package of one module."""

    def setUp(self):
        super().setUp()
        self.folder = pathlib.Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.folder)
        for name, text in PACKAGE.items():
            path = self.folder / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(textwrap.dedent(text), encoding="utf-8")
        self.explained = self.folder / "explained.txt"

    def run_script(self, *arguments):
        driver = DRIVER.format(folder=str(SCRIPT.parent))
        command = [sys.executable, "-c", driver, "--explained", str(self.explained)]
        done = subprocess.run(
            [*command, "--work", "work", "--json", "out.json", *arguments],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
            timeout=120,
        )
        self.assertIn(done.returncode, (0, 1), done.stdout)
        out = json.loads((self.folder / "out.json").read_text(encoding="utf-8"))
        states = {name: result["state"] for name, result in out["results"].items()}
        return done, out, states

    def test_from_the_map_to_the_report(self):
        done, out, states = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertIn("rule_test.py: 6 tests, 1 failed and are left out", done.stdout)
        killed = {
            "rule.grow: comparison `scale > LIMIT` -> `scale <= LIMIT` in `if scale > LIMIT:`",
            "rule.grow: operator `scale * 2` -> `scale / 2` in `return scale * 2`",
            "rule.grow: constant `2` -> `3` in `return scale * 2`",
            "rule.forget: statement `cache.update(a=1)` removed",
            "rule.forget: argument `cache.update(a=1)` -> `cache.update()`",
            # Where one test traces, or caches, for another.
            "rule.shared: operator `n + 5` -> `n - 5` in `return n + 5`",
        }
        survived = {
            "rule: constant `10` -> `11` in `LIMIT = 10`",
            "rule.grow: comparison `scale > LIMIT` -> `scale >= LIMIT` in `if scale > LIMIT:`",
            "rule.forget: statement `cache.clear()` removed",
            "rule.forget: constant `1` -> `2` in `cache.update(a=1)`",
        }
        for state, expected in (("killed", killed), ("survived", survived)):
            self.assertContainsSubset(
                expected, {n for n in states if states[n] == state}, done.stdout
            )
        self.assertEqual(states["rule.opened: statement `event.set()` removed"], "timed out")
        self.assertEqual(states["rule.unused: constant `1` -> `2` in `return 1`"], "unreached")
        self.assertEqual(out["run"], out["all_mutants"])
        self.assertIn(
            "small/rule.py:11: survived\n    rule.forget: statement `cache.clear()` removed\n"
            "    5 tests passed\n",
            done.stdout,
        )
        self.assertRegex(done.stdout, r"\d+/\d+ killed")
        self.assertNotIn("`cache.update(a=1)` removed\n", done.stdout)

        # Who stops the script stops what it runs.
        driver = DRIVER.format(folder=str(SCRIPT.parent)).replace("SECONDS = 5", "SECONDS = 900")
        # Even before the fork has its session.
        slow = "import os, time\nsession = os.setsid\n"
        slow += "os.setsid = lambda: (time.sleep(0.5), session())\n"
        driver = slow + driver
        hanging = ["--work", "other", "--only", "rule"]
        with subprocess.Popen(
            [sys.executable, "-c", driver, *hanging],
            cwd=self.folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            universal_newlines=True,
        ) as stopped:
            for line in stopped.stdout:
                if "in `cache.update(a=1)`" in line:  # The next one hangs.
                    break
            children = pathlib.Path(f"/proc/{stopped.pid}/task/{stopped.pid}/children")
            while children.exists() and not children.read_text(encoding="utf-8").split():
                time.sleep(0.01)
            fork = children.read_text(encoding="utf-8").split() if children.exists() else []
            stopped.terminate()
            stopped.stdout.read()
        self.assertEqual(stopped.returncode, 143)
        for process in fork:
            self.assertFalse(pathlib.Path(f"/proc/{process}").exists())

        # Nothing is run again, and the file of explanations is obeyed.
        self.explained.write_text(
            "rule.forget: statement `cache.clear()` removed\n    It is empty anyway.\n",
            encoding="utf-8",
        )
        done, again, _ = self.run_script()
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotRegex(done.stdout, r"\d+/\d+ killed")
        self.assertEqual(again["results"], out["results"])
        self.assertEqual(again["counts"]["explained"], 1)
        self.assertGreater(again["score"], out["score"])

        # A test is added; what survived is tried again, and the explanation has become stale.
        with (self.folder / "tests" / "rule_test.py").open("a", encoding="utf-8") as file:
            file.write("\ndef test_clears():\n    c = {1: 2}\n    rule.forget(c)\n")
            file.write("    assert c == {'a': 1}\n")
        done, again, states = self.run_script("--again")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn(
            "stale explanation: it is killed: tests/rule_test.py::test_clears", done.stdout
        )
        self.assertEqual(states["rule.forget: statement `cache.clear()` removed"], "killed")
        self.assertEqual(states[min(killed)], "killed")
        self.assertEqual(again["run"], out["run"])

    def test_who_fails_without_the_mutant_too_does_not_kill_it(self):
        """Of a test that needs another, which takes longer, to have run: it is run first here."""
        rule = "def loud(n):\n    unused = n + 1\n    return n\n"
        tests = """\
            from small import rule, started

            def test_slow():
                assert sum(range(3_000_000)) and rule.loud(1) == 1
                started.YET.append(True)

            def test_quick():
                assert rule.loud(1) == 1 and started.YET
            """
        (self.folder / "small" / "rule.py").write_text(rule, encoding="utf-8")
        path = self.folder / "tests" / "rule_test.py"
        path.write_text(textwrap.dedent(tests), encoding="utf-8")
        (self.folder / "tests" / "late_test.py").unlink()
        done, _, states = self.run_script()
        self.assertEqual(set(states.values()), {"not judged"}, done.stdout)
        self.assertIn("rule_test.py::test_quick fails without the mutant, too", done.stdout)


if __name__ == "__main__":
    absltest.main()
