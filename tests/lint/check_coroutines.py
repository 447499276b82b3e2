"""Holds section 7 of STYLE.md where a search can: how co_await may stand, and no lambda coroutines. g++ 12 destroys
some temporaries in a co_await statement twice; coroutine_canary.cpp shows which. Exit 1 with file:line."""
import re
import sys

import tree

OPENS, CLOSES = "([{", ")]}"
NAMED = re.compile(r"(?:[\w:<>,*&\s]|\([\w\s]*\))+[\s&*](?:\w+|\[[\w,\s]+\])\s*=\s*$")
LAMBDA = re.compile(r"(?<![\w)\]\[])\[(?!\[)[^\[\]{};]*\]\s*(?:<[^>]*>)?\s*(\()?")
COROUTINE = re.compile(r"\bco_(?:await|return|yield)\b")
ALIGNED = re.compile(r"\balignas\b|\b__m(?:128|256|512)[id]?\b|\bvector_size\b|\bhn::Vec")


def matching(code, start):
    """Offset of what closes the bracket at `start`."""
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] in OPENS) - (code[i] in CLOSES)
        if depth == 0:
            return i
    return len(code)


def statement_before(code, offset):
    """The statement's text before `offset`, and whether `offset` lies inside a bracket of it."""
    depth, i = 0, offset - 1
    while i >= 0:
        c = code[i]
        if depth == 0 and c in ";{}":
            break
        depth += (c in ")]") - (c in "([")
        if depth < 0:
            return code[i + 1:offset], True
        i -= 1
    return code[i + 1:offset], False


def without_control(text):
    """`if (...)`, `for (...)`, `else`, `case x:` in front of a statement are not part of it."""
    text = text.strip()
    while True:
        if match := re.match(r"(?:if|for|while)(?:\s+constexpr)?\s*\(", text):
            text = text[matching(text, match.end() - 1) + 1:].strip()
        elif match := re.match(r"(?:else|do)\b|(?:case\s[^?]*?|default)\s*(?<!:):(?!:)", text):
            text = text[match.end():].strip()
        else:
            return text


def operand(code, start):
    depth = 0
    for i in range(start, len(code)):
        depth += (code[i] in OPENS) - (code[i] in CLOSES)
        if depth < 0 or (depth == 0 and code[i] == ";"):
            return code[start:i]
    return code[start:]


def lambda_bodies(code):
    for match in LAMBDA.finditer(code):
        after = matching(code, match.end() - 1) + 1 if match.group(1) else match.end()
        if rest := re.compile(r"[\w\s:<>,*&()]*?(?:->[^{;]*)?\{").match(code, after):
            yield match.start(), rest.end() - 1, matching(code, rest.end() - 1)


def findings(code):
    """(offset, what is wrong) in C++ whose comments and strings are blank."""
    lambdas = list(lambda_bodies(code))
    for match in COROUTINE.finditer(code):
        if any(start < match.start() < end for _, start, end in lambdas):
            yield match.start(), "a lambda coroutine: its captures die first; write a named coroutine"
    for match in re.finditer(r"(?<!operator )\bco_await\b", code):
        before, inside = statement_before(code, match.start())
        before = without_control(before)
        if inside or (before and (not NAMED.match(before) or before.startswith("co_"))):
            yield match.start(), "co_await inside an expression: let it stand alone or initialize a named variable"
        if re.search(r"[{}]", operand(code, match.end())):
            yield match.start(), "braces in a co_await's operand: name the value first, then move it in"
    for match in re.finditer(r"\bTask\b[^;{}()]*\([^;{}]*\)[\w\s]*\{", code):
        body = code[match.end() - 1:matching(code, match.end() - 1)]
        if COROUTINE.search(body) and (aligned := ALIGNED.search(body)):
            yield match.end() + aligned.start(), "an aligned local in a coroutine: its frame is not aligned"


def problems(root):
    for path in tree.sources(root):
        here = path.relative_to(root).as_posix()
        if here.startswith("tests/lint/"):
            continue  # the canary holds the forbidden forms
        code = tree.code_only(path.read_text())
        for offset, what in findings(code):
            yield f"{here}:{tree.line_of(code, offset)}: {what}"


def case(body):
    return {"actors/a.cpp": "Task run() {\n" + body + "\n}\n"}


GOOD = """
  co_await inbox_.take(3);
  const int n = co_await numbers(std::move(list));  // {comment}
  auto [a, b] = co_await pair("{", 1);
  const std::vector<int>& all = co_await everything();
  Message* next = co_await inbox_.take(key(1, 2));
  for (int i = 0; i < 3; ++i) co_await step(i);
  if (x[0] > 1) co_await step(values[i]);
  else co_await step(2);
  switch (n) { case 1: co_await step(1); break; case Kind::two: { co_await step(2); } default: co_await step(3); }
  std::sort(v.begin(), v.end(), [&](int x, int y) { return x < y; });
  co_return;
}
auto operator co_await() {
  struct Awaiter {};
  return Awaiter{};
"""
CASES = [
    (case(GOOD), None),
    (case("if (co_await ready()) return;"), "inside an expression"),
    (case("total += co_await number();"), "inside an expression"),
    (case("co_return co_await number();"), "inside an expression"),
    (case("use(co_await number());"), "inside an expression"),
    (case("const int n = 1 + co_await number();"), "inside an expression"),
    (case("n = co_await number();"), "inside an expression"),
    (case("for (int x : co_await list()) use(x);"), "inside an expression"),
    (case("co_await send(Message{1, 2});"), "braces"),
    (case("co_await send({.stage = 1});"), "braces"),
    (case("co_await call([p] { return *p; });"), "braces"),
    (case("auto f = [&]() -> Task { co_await step(1); };"), "lambda coroutine"),
    (case("auto f = [x](int y) { co_return; };"), "lambda coroutine"),
    (case("alignas(64) float x[16];\n co_await step(1);"), "aligned local"),
]

if __name__ == "__main__":
    if "--self-test" in sys.argv:
        tree.self_test(problems, CASES)
    tree.finish("coroutines", list(problems(tree.ROOT)))
