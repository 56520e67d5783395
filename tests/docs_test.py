"""Every code block of README.md, migration_guide.md and docs/ runs, and local links lead somewhere.

A fenced block stands alone unless a comment on the line before its fence says otherwise:

    <!-- test: continues -->       runs after the block before it, in the same namespace
    <!-- test: tf<2 -->            runs on these TensorFlow versions only (`tf>=1.15,<2` too)
    <!-- test: skip REASON -->     is not run, because of the reason

Several go into one comment, separated by semicolons. Without a version, a block runs wherever
execution is eager from the start: on every TensorFlow 2.
"""

import ast
import functools
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import packaging.specifiers
import packaging.version
import tensorflow as tf
from absl.testing import absltest, parameterized

ROOT = pathlib.Path(__file__).resolve().parent.parent
VERSION = packaging.version.parse(tf.__version__)
DEFAULT_VERSIONS = packaging.specifiers.SpecifierSet(">=2.0")
SECONDS_PER_BLOCK = 120
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("**/*.md"))
PAGES = [page for page in PAGES if not page.startswith("docs/_build/")]
# How many Python blocks each document has at least, so that a broken reader of blocks shows.
DOCUMENTS = {
    **dict.fromkeys(PAGES, 0),
    "README.md": 3,
    "migration_guide.md": 1,
    "docs/accumulation.md": 4,
    "docs/checkpoints.md": 4,
    "docs/clusters.md": 2,
    "docs/distribution.md": 4,
    "docs/from-contrib.md": 4,
    "docs/from-keras.md": 9,
    "docs/from-train-experimental.md": 3,
    "docs/index.md": 2,
    "docs/install.md": 2,
    "docs/keras.md": 2,
    "docs/unchanged-code.md": 1,
    "docs/versions.md": 1,
    "docs/watching.md": 7,
}

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+)(?P<language>[\w+-]*).*$")
COMMENT = re.compile(r"^\s*<!--\s*test:\s*(?P<directives>.*?)\s*-->\s*$")


class Block:
    """One fenced block: where it is, what it holds, and when it is to run."""

    def __init__(self, document, line, language, lines, comment):
        self.document = document
        self.line = line  # Of the first line inside the fence, counted from 1.
        self.language = language
        self.lines = lines
        self.continues = False
        self.versions = DEFAULT_VERSIONS
        self.skip = None
        for directive in filter(None, (part.strip() for part in (comment or "").split(";"))):
            word, _, rest = directive.partition(" ")
            if directive == "continues":
                self.continues = True
            elif word == "skip" and rest.strip():
                self.skip = rest.strip()
            elif directive.startswith("tf"):
                self.versions = packaging.specifiers.SpecifierSet(directive[2:].replace(" ", ""))
            else:
                raise ValueError(f"{self.name}: no such directive: {directive!r}")

    @property
    def name(self):
        return f"{self.document}:{self.line}"

    @property
    def runs_here(self):
        return self.skip is None and self.versions.contains(VERSION, prereleases=True)


@functools.lru_cache(maxsize=None)
def read(document):
    return (ROOT / document).read_text(encoding="utf-8")


def blocks_of(document, text=None):
    """Returns a document's fenced blocks in order."""
    lines = (read(document) if text is None else text).splitlines()
    blocks, start, number = [], None, 0
    while number < len(lines):
        match = FENCE.match(lines[number])
        if match:
            start, content = number, []
            closing = re.compile(r"^ *%s`*\s*$" % match.group("fence"))
            number += 1
            while number < len(lines) and not closing.match(lines[number]):
                content.append(lines[number][len(match.group("indent")) :])
                number += 1
            if number == len(lines):
                raise ValueError(f"{document}:{start + 1}: the block is not closed")
            comment = COMMENT.match(lines[start - 1]) if start else None
            directives = comment.group("directives") if comment else None
            blocks.append(Block(document, start + 2, match.group("language"), content, directives))
        number += 1
    return blocks


def chains(blocks):
    """Groups Python blocks: one that stands alone, then those that continue it."""
    grouped = []
    for block in blocks:
        if block.language != "python":
            continue
        if block.continues:
            if not grouped:
                raise ValueError(f"{block.name}: continues nothing")
            grouped[-1].append(block)
        else:
            grouped.append([block])
    return grouped


def source(chain):
    """Returns a chain's program, each line where it is in the document, for tracebacks."""
    lines = []
    for block in chain:
        lines += [""] * (block.line - 1 - len(lines)) + block.lines
    return "\n".join(lines) + "\n"


CHAINS = [chain for document in DOCUMENTS for chain in chains(blocks_of(document))]

# Runs in a process of its own. TensorFlow is imported once; each chain then gets a fork of that
# process, since blocks switch eager execution off and set policies. Without fork, a chain gets a
# process from the start.
RUNNER = r"""
import json, os, sys, time, traceback

def run(program, output):
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    try:
        # From a file, since AutoGraph reads functions' source.
        with open(program, encoding="utf-8") as file:
            code = compile(file.read(), program, "exec")
        exec(code, {"__name__": "__main__", "__file__": program})
        code = 0
    except SystemExit as exit:
        code = exit.code if isinstance(exit.code, int) else int(exit.code is not None)
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)

programs, limit, preload = json.load(sys.stdin)
for name in preload:
    __import__(name)
if not hasattr(os, "fork"):
    run(*programs[0])
codes = []
for program, output in programs:
    child = os.fork()
    if child == 0:
        os.setpgid(0, 0)
        os.chdir(os.path.dirname(output))
        run(program, output)
    end, status = time.monotonic() + limit, None
    while time.monotonic() < end:
        done, waited = os.waitpid(child, os.WNOHANG)
        if done:
            status = waited
            break
        time.sleep(0.02)
    else:
        os.kill(child, 9)
        status = os.waitpid(child, 0)[1]
    codes.append(status)
print(json.dumps(codes))
"""


def execute(chain_list, folder, preload=("tensorflow",)):
    """Runs chains of blocks; returns [(exit status, output)] in the same order."""
    work = []
    for index, chain in enumerate(chain_list):
        place = os.path.join(folder, str(index))
        os.mkdir(place)
        program = os.path.join(place, os.path.basename(chain[0].document) + ".py")
        with open(program, "w", encoding="utf-8") as file:
            file.write(source(chain))
        work.append((program, os.path.join(place, "output.txt")))
    package = importlib.util.find_spec("tf_lossscale_compat").origin
    path = [os.path.dirname(os.path.dirname(package)), os.environ.get("PYTHONPATH", "")]
    environment = dict(
        os.environ,
        PYTHONPATH=os.pathsep.join(filter(None, path)),
        TF_CPP_MIN_LOG_LEVEL="2",
        MPLBACKEND="Agg",
    )
    statuses = []
    for batch in [work] if hasattr(os, "fork") else [[item] for item in work]:
        process = subprocess.run(
            [sys.executable, "-W", "ignore", "-c", RUNNER],
            input=json.dumps([batch, SECONDS_PER_BLOCK, preload]),
            universal_newlines=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            cwd=folder,
            timeout=SECONDS_PER_BLOCK * len(batch) + 120,
        )
        if hasattr(os, "fork"):
            if process.returncode:
                raise RuntimeError(process.stderr)
            statuses += json.loads(process.stdout.splitlines()[-1])
        else:
            statuses.append(process.returncode)
    outputs = []
    for _, output in work:
        with open(output, encoding="utf-8", errors="replace") as file:
            outputs.append(file.read())
    return list(zip(statuses, outputs))


class PythonBlocksTest(parameterized.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.results = {}

    def result(self, chain):
        # All are run when the first is asked for: they share one import of TensorFlow.
        if not self.results:
            wanted = [one for one in CHAINS if all(block.runs_here for block in one)]
            with tempfile.TemporaryDirectory() as folder:
                for one, result in zip(wanted, execute(wanted, folder)):
                    self.results[one[0].name] = result
        return self.results[chain[0].name]

    @parameterized.named_parameters((re.sub(r"\W", "_", chain[0].name), chain) for chain in CHAINS)
    def test_block_runs(self, chain):
        for block in chain:
            if block.skip is not None:
                self.skipTest(f"{block.name} says: {block.skip}")
            if not block.runs_here:
                self.skipTest(f"{block.name} is for TensorFlow {block.versions}")
        status, output = self.result(chain)
        self.assertEqual(status, 0, f"{chain[0].name} failed:\n{output}")

    @parameterized.parameters(*DOCUMENTS.items())
    def test_document_has_blocks(self, document, least):
        blocks = [block for block in blocks_of(document) if block.language == "python"]
        self.assertGreaterEqual(len(blocks), least)

    def test_unmarked_blocks_run_on_tensorflow_2(self):
        if VERSION not in DEFAULT_VERSIONS:
            self.skipTest(f"unmarked blocks are for TensorFlow {DEFAULT_VERSIONS}")
        unmarked = [
            block
            for chain in CHAINS
            for block in chain
            if block.versions == DEFAULT_VERSIONS and block.skip is None
        ]
        self.assertGreater(len(unmarked), 20)
        self.assertEmpty([block.name for block in unmarked if not block.runs_here])


class ShellBlocksTest(parameterized.TestCase):
    @parameterized.parameters(*DOCUMENTS)
    def test_syntax(self, document):
        if shutil.which("bash") is None:
            self.skipTest("there is no bash here")
        blocks = [block for block in blocks_of(document) if block.language in ("bash", "sh")]
        if document == "README.md":
            self.assertGreaterEqual(len(blocks), 2)
        for block in blocks:
            with self.subTest(block.name):
                check = subprocess.run(
                    ["bash", "-n"],
                    input="\n".join(block.lines) + "\n",
                    universal_newlines=True,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                )
                self.assertEqual((check.returncode, check.stdout), (0, ""))

    @parameterized.parameters((0, r"/tf-lossscale demo$"), (1, r"/python -m pytest$"))
    def test_first_screen_has_the_two_commands(self, index, ending):
        blocks = [block for block in blocks_of("README.md") if block.language == "bash"]
        self.assertLess(blocks[index].line, 60)
        (command,) = blocks[index].lines
        self.assertTrue(command.startswith("python3 -m venv .venv && "), command)
        self.assertRegex(command, ending)

    def test_the_test_command_is_marked_for_ci(self):
        lines = read("README.md").splitlines()
        index = lines.index("<!-- test command -->")
        self.assertEqual(lines[index + 1], "```bash")
        self.assertRegex(lines[index + 2], r"/python -m pytest$")

    def test_ci_takes_the_test_command_from_the_readme(self):
        self.assertIn("<!-- test command -->", read(".ci/run"))


@functools.lru_cache(maxsize=None)
def headings(document):
    """Returns the anchors of a document's headings, made as code hosts make them."""
    inside = {
        number
        for block in blocks_of(document)
        for number in range(block.line, block.line + len(block.lines))
    }
    anchors, seen = set(), {}
    for number, line in enumerate(read(document).splitlines(), 1):
        match = re.match(r"^#{1,6}\s+(.*?)\s*#*$", line)
        if not match or number in inside:
            continue
        text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).lower()
        anchor = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        count = seen.get(anchor, 0)
        seen[anchor] = count + 1
        anchors.add(f"{anchor}-{count}" if count else anchor)
    return anchors


class LinksTest(parameterized.TestCase):
    @parameterized.parameters(*DOCUMENTS)
    def test_local_links_lead_somewhere(self, document):
        text = read(document)
        for block in blocks_of(document):
            text = text.replace("\n".join(block.lines), "")
        text = re.sub(r"`[^`\n]*`", "", text)
        for target in re.findall(r"\]\(([^)\s]+)(?:\s+\"[^\"]*\")?\)", text):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            with self.subTest(target):
                name, _, anchor = target.partition("#")
                path = ((ROOT / document).parent / name if name else ROOT / document).resolve()
                self.assertTrue(path.exists(), f"{document} links to {target}")
                if anchor:
                    known = headings(path.relative_to(ROOT).as_posix())
                    self.assertIn(anchor, known, f"{document} links to {target}")


class PagesTest(parameterized.TestCase):
    """What a reader finds: the page for what they have, by the words that they know."""

    def test_the_guide_is_the_short_way_in(self):
        guide = read("migration_guide.md")
        self.assertLessEqual(len(guide.splitlines()), 300)
        for page in PAGES:
            if re.match(r"docs/(from-|install|checkpoints|watching|troubleshooting)", page):
                self.assertIn(f"]({page}", guide)

    # migration.md has the text of migration_guide.md.
    @parameterized.parameters(
        *(page for page in PAGES if page.count("/") == 1 and page != "docs/migration.md")
    )
    def test_page_begins_with_whom_it_is_for(self, page):
        title, _, rest = read(page).partition("\n\n")
        self.assertRegex(title, r"\A# ")
        first = rest.split("\n\n")[0].replace("\n", " ")
        self.assertRegex(first, r"\bThis page is for \w")

    def test_the_table_of_namespaces_stands_once(self):
        table = read("README.md").partition("<!-- replace -->\n")[2].partition("<!-- end -->")[0]
        rows = table.splitlines()[2:]
        self.assertGreater(len(rows), 4)
        page = read("docs/migration.md")
        self.assertEqual(page.count("<!-- replace -->"), 2)
        for document in DOCUMENTS:
            with self.subTest(document):
                found = [row for row in rows if row in read(document)]
                self.assertEqual(found, rows if document == "README.md" else [])

    def test_the_site_is_small(self):
        pages = [page for page in PAGES if page.count("/") == 1 and page != "docs/releasing.md"]
        self.assertLessEqual(len(pages), 18)
        self.assertLessEqual(len(read("README.md").splitlines()), 130)

    def test_every_example_is_on_the_page(self):
        files = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
        found = re.findall(r"\{literalinclude\} \.\./examples/(\w+\.py)", read("docs/examples.md"))
        self.assertGreater(len(files), 5)
        self.assertCountEqual(found, files)

    @parameterized.parameters(
        ("pip install path/to/tf_lossscale_compat", "install"),
        ("is on no package index", "install"),
        ("Graph is finalized and cannot be modified", "from-contrib"),
        ("Graph is finalized and cannot be modified", "troubleshooting"),
        ("skipped steps", "from-contrib"),
        ("skipped steps", "watching"),
        ("v1 optimizers", "watching"),
        ("CheckpointManager", "checkpoints"),
        ("summaries", "watching"),
        ("TensorBoard", "watching"),
        ("Could not locate class", "troubleshooting"),
        ("mixed_float16", "keras"),
        ("mixed_bfloat16", "keras"),
        ("set_global_policy", "keras"),
        ("legacy", "from-keras"),
        ("loss is NaN", "troubleshooting"),
        ("multiple GPUs", "troubleshooting"),
        ("halves every step", "troubleshooting"),
        ("stays at 1", "troubleshooting"),
        ("grows without end", "troubleshooting"),
        ("weights do not move", "troubleshooting"),
        ("where to clip", "troubleshooting"),
        ("global step (tf.train.get_global_step) has not been increased", "troubleshooting"),
        ("tolerance", "versions"),
    )
    def test_page_has_words(self, words, page):
        text = re.sub(r"\s+", " ", read(f"docs/{page}.md"))
        self.assertIn(words.lower(), text.lower())

    def test_the_switch_stands_before_keras_3(self):
        text = read("docs/from-keras.md")
        self.assertLess(text.index("TF_USE_LEGACY_KERAS=1"), text.index("on to Keras 3"))


class TroubleshootingTest(absltest.TestCase):
    def test_the_messages_are_the_packages(self):
        _, _, rest = read("docs/troubleshooting.md").partition("<!-- messages of this package -->")
        table = rest.split("\n\n")[1].splitlines()[2:]
        self.assertGreater(len(table), 10)
        said = []
        for path in (ROOT / "tf_lossscale_compat").rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                # Python 3.7 calls them Str and what they hold s.
                text = getattr(node, "s" if sys.version_info < (3, 8) else "value", None)
                if isinstance(text, str):
                    said.append(text)
        for row in table:
            message = re.match(r"\| `([^`]+)` \|", row).group(1)
            with self.subTest(message):
                self.assertTrue(any(message in text for text in said), "no such message")


class ReaderTest(absltest.TestCase):
    """The reading and the running of blocks, on a small document of its own."""

    TEXT = "\n".join(
        [
            "```python",
            "x = 1",
            "```",
            "<!-- test: continues -->",
            "```python",
            "assert x == 1",
            "```",
            "<!-- test: tf<1 -->",
            "```python",
            "old",
            "```",
            "<!-- test: skip needs two machines -->",
            "```python",
            "skipped",
            "```",
            "```python",
            "import sys",
            "print(sys.argv)",
            "raise ValueError('seen')",
            "```",
            "```bash",
            "true",
            "```",
        ]
    )

    def test_reads_directives(self):
        blocks = blocks_of("x.md", self.TEXT)
        self.assertEqual([block.line for block in blocks], [2, 6, 10, 14, 17, 22])
        self.assertEqual(
            [block.runs_here for block in blocks if block.versions != DEFAULT_VERSIONS], [False]
        )
        self.assertEqual(blocks[3].skip, "needs two machines")
        self.assertEqual(blocks[5].language, "bash")
        self.assertEqual([len(chain) for chain in chains(blocks)], [2, 1, 1, 1])

    def test_refuses_a_directive_it_does_not_know(self):
        for directive in ("skip", "sometimes"):
            with self.assertRaisesRegex(ValueError, "no such directive"):
                blocks_of("x.md", f"<!-- test: {directive} -->\n```python\n```")

    def test_tells_a_passing_block_from_a_failing_one(self):
        passing, _, _, failing = chains(blocks_of("x.md", self.TEXT))
        with tempfile.TemporaryDirectory() as folder:
            results = execute([passing, failing], folder, preload=())
        self.assertEqual(results[0], (0, ""))
        self.assertNotEqual(results[1][0], 0)
        self.assertIn('x.md.py", line 19', results[1][1])
        self.assertIn("ValueError: seen", results[1][1])


if __name__ == "__main__":
    absltest.main()
