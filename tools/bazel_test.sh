#!/usr/bin/env bash
# Proves that BUILD is right, without the network but for installing: builds everything, asks that
# each test file has a target, and runs one test.
#
#   tools/bazel_test.sh                        one that reads what BUILD lists as data
#   tools/bazel_test.sh //:v1_adapters_test  these targets instead; //... for all of them
#
#   PYTHON=…   the interpreter that runs the tests: TensorFlow and the extra `test` installed, this
#              package not. Without it one is set up in .ci/bazel-venv, with the packages of .venv
#              if README's test command has made that.
#   BAZEL_TEST_SECONDS=…   the limit for each run of Bazel (2400)
#
# Needs Debian's bazel-bootstrap, bazel-rules-java and bazel-rules-proto, and installs them where it
# may (root, apt-get). A newer Bazel, which fetches rules as MODULE.bazel says, needs no such script:
# bazel test //...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
root=$PWD

fail() {
  printf 'tools/bazel_test.sh: %s\n' "$*" >&2
  exit 1
}

packages=(bazel-bootstrap bazel-rules-java bazel-rules-proto)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    fail "needs the packages ${packages[*]} of Debian or Ubuntu; install them as root:" \
      "apt-get install --no-install-recommends ${packages[*]}"
  fi
  apt-get update -qq || true # What is missing then shows in the next line.
  DEBIAN_FRONTEND=noninteractive timeout 600 \
    apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null ||
    fail "apt-get could not install ${packages[*]}"
fi
rules_folder() {
  local file
  file=$(dpkg -L "$1" | grep '/WORKSPACE$' | head -n 1)
  [[ -n $file ]] || fail "the package $1 holds no WORKSPACE"
  dirname "$file"
}
rules_java=$(rules_folder bazel-rules-java)
rules_proto=$(rules_folder bazel-rules-proto)

site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
if [[ -z ${PYTHON:-} ]]; then
  PYTHON=$root/.ci/bazel-venv/bin/python
  if [[ ! -x $PYTHON ]]; then
    python3 -m venv .ci/bazel-venv
    if [[ -x .venv/bin/python ]]; then
      # A folder named in a .pth file is searched for packages, but not for further .pth files, by
      # which .venv finds the clone.
      site_packages .venv/bin/python >"$(site_packages "$PYTHON")/venv.pth"
    else
      # For what it needs; the package itself is to come from BUILD.
      "$PYTHON" -m pip install -q -e '.[tensorflow-cpu,test]'
      "$PYTHON" -m pip uninstall -q -y tf_lossscale_compat
    fi
  fi
fi
PYTHON=$(command -v "$PYTHON") || fail "there is no interpreter $PYTHON"
case $PYTHON in /*) ;; *) PYTHON=$root/$PYTHON ;; esac
(cd / && "$PYTHON" -c 'import importlib.util as u, sys
sys.exit(u.find_spec("tensorflow") is None or u.find_spec("pytest") is None)') ||
  fail "$PYTHON has no TensorFlow or lacks the extra test"
(cd / && PYTHONPATH='' "$PYTHON" -c 'import importlib.util as u, sys
sys.exit(u.find_spec("tf_lossscale_compat") is not None)') ||
  fail "tf_lossscale_compat is installed for $PYTHON: what is tested has to come from BUILD"

scratch=$(mktemp -d "${TMPDIR:-/tmp}/bazel_test.XXXXXX")
trap 'chmod -R u+w "$scratch" && rm -rf "$scratch"' EXIT

# A copy of the sources: Bazel before 6 needs a WORKSPACE, which the newer one is better without,
# and an environment in the clone would be searched for packages.
mkdir "$scratch/workspace"
tar -c --exclude=./.git --exclude=./.ci --exclude=./.nox --exclude='./.venv*' --exclude='./bazel-*' \
  --exclude=./build --exclude=./dist --exclude='./*.egg-info' --exclude=__pycache__ . | tar -x -C "$scratch/workspace"
printf 'workspace(name = "tf_lossscale_compat")\n' >"$scratch/workspace/WORKSPACE"

# What Bazel's own files load from repositories that it would fetch: the native rules, renamed.
stub() { # REPOSITORY FOLDER RULE...
  local repository=$scratch/$1 folder=$2 rule
  shift 2
  mkdir -p "$repository/$folder"
  touch "$repository/WORKSPACE" "$repository/BUILD" "$repository/$folder/BUILD"
  for rule in "$@"; do
    printf '%s = native.%s\n' "$rule" "$rule"
  done >"$repository/$folder/defs.bzl"
}
stub rules_cc cc cc_library cc_binary cc_test cc_import cc_toolchain cc_toolchain_suite \
  cc_proto_library objc_library
stub rules_python python py_library py_binary py_test
stub remote_coverage_tools .
cat >"$scratch/remote_coverage_tools/BUILD" <<'BUILD'
package(default_visibility = ["//visibility:public"])

filegroup(name = "coverage_report_generator")

filegroup(name = "lcov_merger")
BUILD

(($# > 0)) || set -- //:scales_loss_scale_as_number_test
cd "$scratch/workspace"
# run_bazel COMMAND ARGUMENT...: --batch leaves no server behind.
run_bazel() {
  local command=$1 status=0
  shift
  timeout --kill-after=30 "${BAZEL_TEST_SECONDS:-2400}" \
    bazel --batch --host_jvm_args=-Xmx1g --output_user_root="$scratch/output" "$command" \
    --override_repository=rules_java="$rules_java" \
    --override_repository=rules_proto="$rules_proto" \
    --override_repository=rules_cc="$scratch/rules_cc" \
    --override_repository=rules_python="$scratch/rules_python" \
    --override_repository=remote_coverage_tools="$scratch/remote_coverage_tools" \
    --noshow_progress "$@" || status=$?
  ((status != 124)) || fail "Bazel was stopped after ${BAZEL_TEST_SECONDS:-2400} s"
  return "$status"
}

targets=$(run_bazel query 'labels(srcs, kind(py_test, //...))' 2>"$scratch/query.txt" | grep _test.py | sort) ||
  fail "the query failed: $(cat "$scratch/query.txt")"
files=$(find tests -name '*_test.py' | sed 's|^|//:|' | sort)
[[ $targets == "$files" ]] ||
  fail "test files without a target, or the reverse: $(diff <(echo "$targets") <(echo "$files"))"

options=(--incompatible_use_python_toolchains=false --python_path="$PYTHON"
  --symlink_prefix=/ --jobs=2 --spawn_strategy=local)
run_bazel build "${options[@]}" //...
# Two at a time: each test is a TensorFlow of its own.
run_bazel test "${options[@]}" --local_test_jobs=2 --build_tests_only \
  --test_env=TF_CPP_MIN_LOG_LEVEL=2 --test_env=PYTHONDONTWRITEBYTECODE=1 \
  --test_output=errors --test_summary=short "$@"
