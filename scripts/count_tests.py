"""Adds up test runs: LABEL=PATH of meson's testlog.json each. Prints what failed and what was skipped, and as
the last line "N passed, N failed, N skipped". A Catch2 program counts with its test cases, any other test as one.
A run that left no log counts as one failed test. Exit 1 when something failed or nothing ran."""
import json
import pathlib
import re
import sys

ALL_PASSED = re.compile(r"^All tests passed \(.*? in (\d+) test cases?\)", re.M)
SOME_FAILED = re.compile(r"^test cases: *(\d+)(?: \| *(\d+) passed)?(?: \| *(\d+) failed)?", re.M)


def count(test):
    """(passed, failed, skipped) of one line of the log."""
    result, out = test["result"], test.get("stdout") or ""
    if result == "SKIP":
        return 0, 0, 1
    good = result in ("OK", "EXPECTEDFAIL")
    if all_passed := ALL_PASSED.findall(out):
        passed, failed = sum(map(int, all_passed)), 0
    elif some := SOME_FAILED.search(out):
        passed, failed = int(some.group(2) or 0), int(some.group(3) or 0)
    else:
        passed, failed = int(good), 0
    return passed, failed if good else max(failed, 1), 0


def read(path):
    if not path.exists():
        return None
    return [json.loads(line) for line in path.read_text().splitlines() if line.strip()]


def main():
    total = [0, 0, 0]
    for argument in sys.argv[1:]:
        label, _, path = argument.partition("=")
        tests = read(pathlib.Path(path))
        sums = [0, 0, 0]
        for test in tests or []:
            counts = count(test)
            sums = [a + b for a, b in zip(sums, counts)]
            reason = (test.get("stdout") or "").strip().splitlines()[-1:]
            if counts[1]:
                print(f"{label}: FAILED {test['name']} ({test['result'].lower()})")
            elif counts[2]:
                print(f"{label}: skipped {test['name']}: {''.join(reason) or 'no reason given'}")
        if tests is None:
            print(f"{label}: FAILED to build or to run")
            sums = [0, 1, 0]
        if len(sys.argv) > 2:
            print(f"{label}: passed {sums[0]}, failed {sums[1]}, skipped {sums[2]}")
        total = [a + b for a, b in zip(total, sums)]
    print("{} passed, {} failed, {} skipped".format(*total))
    sys.exit(bool(total[1] or not total[0]))


main()
