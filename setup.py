"""Installs tf_lossscale_compat; tool settings are in pyproject.toml."""

import os
import re

import setuptools

HERE = os.path.dirname(os.path.abspath(__file__))


def read(*parts):
    with open(os.path.join(HERE, *parts), encoding="utf-8") as file:
        return file.read()


def version():
    # Read as text: importing the package would need TensorFlow at build time.
    match = re.search(
        r'^__version__ = "([^"]+)"$', read("tf_lossscale_compat", "__init__.py"), re.MULTILINE
    )
    if match is None:
        raise RuntimeError("tf_lossscale_compat/__init__.py holds no __version__ line")
    return match.group(1)


# LibCST needs Python 3.9; code for older TensorFlows is migrated with a newer Python. Also named in
# .pre-commit-hooks.yaml.
LIBCST = 'libcst>=1.1; python_version >= "3.9"'
MIGRATE = [LIBCST]
TEST = [
    "pytest>=7",
    "pytest-timeout",
    "pytest-xdist>=3.5",
    "packaging",
    "scikit-learn",  # For the examples.
    "tensorboard",  # For docs/watching.md; the newest TensorFlow does not bring it.
    LIBCST,
    "jupytext; python_version >= '3.9'",  # Through which notebooks are migrated.
]
# A warning of theirs fails the build, so a new major version waits until it was tried.
DOCS = ["furo>=2024.8.6", "myst-parser>=4,<6", "sphinx>=8.1,<10", "sphinx-copybutton>=0.5.2"]
# ruff's formatting may change with its minor version, so that is held.
DEV = ["import-linter", "mypy>=2.4,<3", "nox>=2025.5.1", "ruff==0.17.*"]

setuptools.setup(
    name="tf_lossscale_compat",
    version=version(),
    description=(
        "Drop-in replacements for Keras' LossScaleOptimizer with get_scaled_loss,"
        " tf.contrib.mixed_precision and DynamicLossScale, on TensorFlow 1.15 to 2.22"
    ),
    long_description=read("README.md"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=setuptools.find_packages(include=["tf_lossscale_compat", "tf_lossscale_compat.*"]),
    package_data={"tf_lossscale_compat": ["py.typed"]},
    zip_safe=False,
    python_requires=">=3.7",
    # `pip install -e` puts the clone on the path: type checkers do not follow an import hook.
    options={"editable_wheel": {"mode": "compat"}},
    install_requires=["absl-py"],
    extras_require={
        # No TensorFlow in install_requires: it has several distributions, and whoever migrates
        # has one of them already.
        "tensorflow": ["tensorflow>=1.15"],
        "tensorflow-cpu": ["tensorflow-cpu>=1.15"],
        "migrate": MIGRATE,
        "test": TEST,
        "dev": DEV,
        "docs": DOCS,
    },
    entry_points={"console_scripts": ["tf-lossscale = tf_lossscale_compat.__main__:main"]},
    keywords=(
        "tensorflow keras keras-3 mixed-precision float16 fp16 amp loss-scaling LossScaleOptimizer"
        " get_scaled_loss contrib migration"
    ),
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Developers",
        "Intended Audience :: Science/Research",
        "Operating System :: OS Independent",
        "Programming Language :: Python :: 3",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.7",
        "Programming Language :: Python :: 3.8",
        "Programming Language :: Python :: 3.9",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Software Development :: Libraries :: Python Modules",
        "Typing :: Typed",
    ],
)
