"""How long `tf-lossscale migrate` takes per thousand files: `migrate_files.py FOLDER`.

Looks at every file below the folder and writes nothing. Of every result that differs it checks that
it parses and that a second run changes nothing more. Prints JSON.
"""

import argparse
import json
import os
import platform
import sys
import time

import libcst

from tf_lossscale_compat.migrate import _command, _files, _source, _walk


def measure(folder):
    """Migrates a folder's files in memory; returns what to print."""
    paths = list(_walk.files(folder))
    parsed = changed = findings = failures = size = 0
    seconds = 0.0
    for path in paths:
        start = time.process_time()
        try:
            data = _files.read(path)
        except _files.FileError:
            failures += 1
            continue
        outcome = _command.migrate_bytes(data, path.endswith(".ipynb"))
        seconds += time.process_time() - start
        size += len(data)
        parsed += _source.may_concern(data)
        findings += len(outcome.findings)
        failures += len(outcome.failures)
        if outcome.new != outcome.old:
            changed += 1
            compile(outcome.new, path, "exec")
            again = _command.migrate_bytes(outcome.new, path.endswith(".ipynb"))
            if again.new != outcome.new:
                raise AssertionError(f"{path} should not have been changed so")
    return {
        "files": len(paths),
        "megabytes": round(size / 1e6, 1),
        "parsed": parsed,
        "changed": changed,
        "findings": findings,
        "not_handled": failures,
        "seconds": round(seconds, 1),
        "seconds_per_thousand_files": round(1000 * seconds / max(len(paths), 1), 2),
        "python": platform.python_version(),
        "libcst": getattr(libcst, "LIBCST_VERSION", "unknown"),
    }


def main():
    """Prints the measurement of the folder that is named."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=os.path.abspath)
    print(json.dumps(measure(parser.parse_args().folder), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
