"""Adds up test runs, each LABEL=PATH=STATUS: meson's testlog.json and its exit status. Prints what failed and what
was skipped, and as the last line "N passed, N failed, N skipped". A Catch2 program counts with its test cases, any
other test as one. A run that ended badly without naming a failed test counts as one. Exit 1 when something failed or
nothing ran at all."""
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
    if good and (all_passed := ALL_PASSED.findall(out)):
        passed, failed = max(map(int, all_passed)), 0  # under mpirun each rank says it of the same cases
    elif some := SOME_FAILED.search(out):
        passed, failed = int(some.group(2) or 0), int(some.group(3) or 0)
    else:
        passed, failed = int(good), 0
    return passed, failed if good else max(failed, 1), 0


def report(label, path, status):
    """(passed, failed, skipped) of one run; prints what a reader has to know of it."""
    sums = [0, 0, 0]
    for line in path.read_text().splitlines() if path.exists() else []:
        test = json.loads(line)
        counts = count(test)
        sums = [a + b for a, b in zip(sums, counts)]
        last_line = "".join((test.get("stdout") or "").strip().splitlines()[-1:])
        if counts[1]:
            print(f"{label}: FAILED {test['name']} ({test['result'].lower()})")
        elif counts[2]:
            print(f"{label}: skipped {test['name']}: {last_line or 'no reason given'}")
    if status and not sums[1]:
        print(f"{label}: FAILED to build or to run")
        sums[1] = 1
    return sums


def main():
    total = [0, 0, 0]
    for argument in sys.argv[1:]:
        label, path, status = argument.split("=")
        sums = report(label, pathlib.Path(path), int(status))
        if len(sys.argv) > 2:
            print(f"{label}: passed {sums[0]}, failed {sums[1]}, skipped {sums[2]}")
        total = [a + b for a, b in zip(total, sums)]
    print("{} passed, {} failed, {} skipped".format(*total))
    sys.exit(1 if total[1] or not total[0] else 0)


main()
