#!/usr/bin/env bash
# Builds all targets of BUILD and runs one test, or those that are named:
#
#   tools/bazel_test.sh //:scales_loss_scales_test
#
# Needs README's test command to have run, and Debian's bazel-bootstrap, bazel-rules-java and
# bazel-rules-proto, which it installs as root. A newer Bazel, which fetches rules as MODULE.bazel
# says, needs no such script: bazel test //...
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
(($# > 0)) || set -- //:scales_tensor_like_test

packages=(bazel-bootstrap bazel-rules-java bazel-rules-proto)
if ! dpkg -s "${packages[@]}" >/dev/null 2>&1; then
  apt-get update -qq || true # What is missing then shows in the next line.
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${packages[@]}" >/dev/null
fi
rules() { dirname "$(dpkg -L "$1" | grep '/WORKSPACE$' | head -n 1)"; }

# The packages of .venv without the clone, as what is tested is to come from BUILD. Python looks into
# a folder that a .pth file names, but reads no .pth file there.
site_packages() { "$1" -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; }
python=$PWD/.ci/bazel-venv/bin/python
rm -rf .ci/bazel-venv && .venv/bin/python -m venv .ci/bazel-venv
site_packages .venv/bin/python >"$(site_packages "$python")/venv.pth"

# A copy of what git knows, as Bazel before 6 needs a WORKSPACE, which a newer one is better without.
scratch=$(mktemp -d)
trap 'chmod -R u+w "$scratch" && rm -rf "$scratch"' EXIT
mkdir "$scratch/workspace"
git ls-files -z | xargs -0 cp --parents -t "$scratch/workspace"
echo 'workspace(name = "tf_lossscale_compat")' >"$scratch/workspace/WORKSPACE"

# What Bazel's own files load from repositories that it would fetch: the native rules, renamed.
stub() { # FILE RULE...
  local file=$scratch/$1
  mkdir -p "$(dirname "$file")"
  touch "$(dirname "$(dirname "$file")")/WORKSPACE" "$(dirname "$file")/BUILD"
  printf '%s\n' "${@:2}" | sed 's/.*/& = native.&/' >"$file"
}
stub rules_cc/cc/defs.bzl cc_library cc_binary cc_test cc_import cc_toolchain cc_toolchain_suite \
  cc_proto_library objc_library
stub rules_python/python/defs.bzl py_library py_binary py_test
mkdir "$scratch/remote_coverage_tools" && touch "$scratch/remote_coverage_tools/WORKSPACE"
printf 'filegroup(name = "%s", visibility = ["//visibility:public"])\n' \
  coverage_report_generator lcov_merger >"$scratch/remote_coverage_tools/BUILD"

cd "$scratch/workspace"
# --batch leaves no server behind.
bazel() {
  command bazel --batch --host_jvm_args=-Xmx1g --output_user_root="$scratch/output" "$1" \
    --override_repository={rules_java="$(rules bazel-rules-java)",rules_proto="$(rules bazel-rules-proto)"} \
    --override_repository={rules_cc="$scratch/rules_cc",rules_python="$scratch/rules_python"} \
    --override_repository=remote_coverage_tools="$scratch/remote_coverage_tools" \
    --incompatible_use_python_toolchains=false --python_path="$python" --symlink_prefix=/ \
    --jobs=2 --spawn_strategy=local --noshow_progress "${@:2}"
}
bazel build //...
bazel test --build_tests_only --test_output=errors --test_env=TF_CPP_MIN_LOG_LEVEL=2 \
  --test_env=PYTHONDONTWRITEBYTECODE=1 "$@"
