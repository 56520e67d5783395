"""Builds the documentation: `nox -s docs`, then open docs/_build/html/index.html."""

import inspect
import os
import pathlib
import re
import sys
from importlib import metadata

from docutils import nodes
from sphinx import addnodes
from sphinx.transforms import SphinxTransform

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

project = "tf_lossscale_compat"
author = "the authors of tf_lossscale_compat"
_package = (ROOT / project / "__init__.py").read_text(encoding="utf-8")
release = version = re.search(r'^__version__ = "(.+)"$', _package, re.MULTILINE).group(1)

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
# The others are pages of the repository alone.
exclude_patterns = ["_build", "architecture.md", "releasing.md", "zh"]
# What is typed is copied, without prompts and what is printed.
copybutton_exclude = ".linenos, .gp, .go"
# Messages are read: on a phone the button would lie on their first line.
copybutton_selector = "div:not(.highlight-text) > div.highlight pre"
# As package indexes and search engines show it.
myst_html_meta = {"description": metadata.metadata(project)["Summary"]}
# In docstrings, what stands in single backquotes is code.
default_role = "code"

# As code hosts make them, so that links to headings lead there on both.
myst_heading_anchors = 4

autoclass_content = "both"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
add_module_names = False
# Those of TensorFlow and Keras are written in other markup.
autodoc_inherit_docstrings = False
napoleon_numpy_docstring = False
napoleon_use_rtype = False

nitpicky = True
# Bases and exceptions of other packages, which have no pages here; `-n` asks for all others.
nitpick_ignore_regex = [
    (r"py:.*", r"(tensorflow|keras|tf_keras|numpy|collections|typing|builtins)\b.*"),
    (r"py:(class|exc|obj)", r"(object|tuple|list|dict|str|int|float|bool|None|\w+(Error|Warning))"),
]

html_theme = "furo"
html_static_path, html_css_files = ["site.css", "search.js"], ["site.css"]
html_js_files = [("search.js", {"defer": "defer"})]  # After Sphinx' own on the page of hits.
html_title = f"TensorFlow loss scaling {release}"
# Furo's own show no colour for what a diff adds, and underline modules like links.
pygments_style, pygments_dark_style = "friendly", "github-dark"
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False
html_use_index = html_domain_indices = False


# Subsections, programs, comments, and descriptions of the API, which are hits of their own.
_OTHER = (nodes.section, nodes.literal_block, nodes.raw, addnodes.desc)


def _of_constructor(app, what, name, obj, options, signature, returns):
    # Classes that become one of the Keras at hand are made by `__new__`, which takes anything.
    if what != "class" or signature is None or "*args, **kwargs" not in signature:
        return None
    _, *parameters = inspect.signature(obj.__init__).parameters.values()
    plain = [parameter.replace(annotation=parameter.empty) for parameter in parameters]
    return str(inspect.Signature(plain)), ""


def _sources(app, docname, source):
    # Pages of the site include these.
    text = source[0].replace("](../migration_guide.md", "](migration.md")
    text = text.replace("](../README.md#", "](index.md#")
    text = re.sub(r"\]\((?=[./]+(CHANGELOG|CONTRIBUTING)\.md)", "](path:", text)  # To download.
    source[0] = text


class _Sections(SphinxTransform):
    """Makes an entry of the index of each section's text, for `search.js`."""

    default_priority = 800  # Before Sphinx gathers the entries.

    def apply(self, **options):
        """Adds the entries: a ~, and the words of the section."""
        for section in self.document.findall(nodes.section):
            words, rest = set(), section.children[1:]
            while rest:
                node = rest.pop()
                if isinstance(node, nodes.Text):
                    words.update(re.findall(r"\w+", node))
                    words.update(re.findall(r"[A-Z][a-z]+", node))  # Of `LossScale`, too.
                elif not isinstance(node, _OTHER) or node.get("language") == "text":
                    rest.extend(node.children)
            # Sphinx gives a page's title no anchor in its list of titles.
            anchor = "" if section.parent is self.document else section["ids"][0]
            entry = ("single", "~ " + " ".join(sorted(words)), anchor, "main", None)
            section.insert(1, addnodes.index(entries=[entry]))


def setup(app):
    """Connects what is done to sources and to signatures."""
    app.connect("source-read", _sources)
    app.connect("autodoc-process-signature", _of_constructor)
    app.add_transform(_Sections)
