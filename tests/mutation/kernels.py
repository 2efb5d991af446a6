#!/usr/bin/env python3
"""Take each barrier, mask, wait and bounds check out of the kernels, one at a time, and see a kernel test fail.

Usage: kernels.py FOLDER [OPERATION...]
       kernels.py --list [OPERATION...]
       kernels.py --check

Works on a copy in FOLDER. Compiles the operation's kernels and its test for the simulator and runs the test; where it
passes, again under AddressSanitizer and under ThreadSanitizer, which is the race check. What survives all three must
stand in kernels_survivors.txt with the reason. The exit status is 1 where something else survives, or where something
in that file does not. --list prints the names of all mutations, --check only sees that kernels_survivors.txt names none
that is gone.

A condition is taken apart: each of its terms is assumed to hold (of an early end: not to), the others stay.
"""
import pathlib
import re
import resource
import shutil
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SURVIVORS = pathlib.Path(__file__).with_name("kernels_survivors.txt")
# An operation's test, and what of the library that pulls in.
TESTS = {
    "linear": ["tests/kernels/linear.cc"],
    "pages": ["tests/kernels/pages.cc"],
    "rows": ["tests/kernels/rows.cc", "lib/model/rope_tables.cc"],
    "score": ["tests/kernels/score.cc"],
    "topk": ["tests/kernels/topk.cc"],
    "attend": ["tests/kernels/attend.cc", "kernels/rows/rows.cu"],
}
COMMON = ["kernels/simt/conflicts.cc", "kernels/simt/engine.cc", "tests/kernels/main.cc"]
KINDS = {
    "release": ["-O1"],
    "address": ["-O1", "-g1", "-fsanitize=address,bounds,float-cast-overflow", "-fno-sanitize-recover=all"],
    "thread": ["-O1", "-g1", "-fsanitize=thread"],
}
# Left out under ThreadSanitizer, where they take minutes: other cases of the file go through the same barriers.
TOO_LONG_FOR_THREAD = {"topk": ["topk: rows of every width*", "keep blocks: every block size*"]}
MEMORY_LIMIT = 8 << 30  # of a test without a sanitizer: a mutation may ask for anything
CCACHE = [shutil.which("ccache")] if shutil.which("ccache") else []


# ---- Where something can be taken out.


def run_time_code(text):
    """The same text, as long, with spaces for comments and for what is no kernel's code at run time."""
    nothing = (r"//[^\n]*|^#[^\n]*|\bstatic_assert\([^;]*;|\b__launch_bounds__\([^)]*\)"
               r"|\bconstexpr [\w ]+\([^()]*\) {[^}]*}")
    return re.sub(nothing, lambda match: re.sub(r"[^\n]", " ", match[0]), text, flags=re.M)


def closing(text, at):
    """The place behind the bracket that closes the one at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0:
            return i + 1
    raise ValueError("a bracket is not closed")


def terms(text, begin, end, operator):
    """The parts (begin, end) between which the operator stands outside of brackets."""
    parts, depth, start = [], 0, begin
    for i in range(begin, end):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth == 0 and text.startswith(operator, i):
            parts.append((start, i))
            start = i + len(operator)
    parts.append((start, end))
    stripped = []
    for b, e in parts:
        part = text[b:e]
        stripped.append((b + len(part) - len(part.lstrip()), e - len(part) + len(part.rstrip())))
    return stripped


def is_check(term):
    """Whether a term is about bounds, presence or the thread, rather than about which of two ways is taken."""
    outside = term
    while (inner := re.sub(r"[(\[{][^()\[\]{}]*[)\]}]", "", outside)) != outside:
        outside = inner
    return bool(re.search(r" [<>]=? ", outside) or re.fullmatch(r"!?[A-Za-z_][\w.\[\]]*(?:->\w+)?", term)
                or re.search(r"\b(?:lane|thread|threadIdx\.x)\b.* [=!]= ", term)) and term not in ("true", "false")


def condition_start(text, end):
    """Where the condition begins that ends at `end`, before a question mark."""
    depth = 0
    for i in range(end - 1, -1, -1):
        c = text[i]
        if c in ")]}":
            depth += 1
        elif c in "([{":
            if depth == 0:
                return i + 1
            depth -= 1
        elif depth == 0:
            compares = c == "=" and (text[i - 1] in "<>!=" or text[i + 1] == "=")
            scope = c == ":" and ":" in (text[i - 1], text[i + 1])
            if c in ",;?" or (c == "=" and not compares) or (c == ":" and not scope):
                return i + 1
            if re.match(r"\breturn\b", text[i : i + 7]) and not text[i - 1].isalnum():
                return i + len("return")
    return 0


def statement_end(text, at):
    """The semicolon that ends what stands at `at`, or the bracket around it."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] in "([{") - (text[i] in ")]}")
        if depth < 0 or depth == 0 and text[i] == ";":
            return i
    return len(text)


def conditions(text):
    """(kind, begin, end, whether to assume that it does not hold) of each condition."""
    early = re.compile(r"\s*(?:return(?: -1| 0| nullptr| \{[^;{}]*\})?|continue|break);")
    for match in re.finditer(r"(?<!constexpr )\((?<=\bif \()", text):
        end = closing(text, match.start())
        is_early = early.match(text, end)
        yield "early end" if is_early else "bound", match.end(), end - 1, bool(is_early)
    for match in re.finditer(r"\b(?:for|while) \(", text):
        begin, end = match.end(), closing(text, match.end() - 1) - 1
        parts = terms(text, begin, end, ";")
        begin, end = parts[1] if len(parts) == 3 else (begin, end)
        if len(terms(text, begin, end, "&&")) > 1:
            yield "bound of a loop", begin, end, False
    for match in re.finditer(r"\s\?", text):
        yield "choice by bound", condition_start(text, match.start()), match.start(), False
    for match in re.finditer(r"(?:[\w\])] =|\breturn) (?=[\w(!])", text):
        begin, end = terms(text, match.end(), statement_end(text, match.end()), ";")[0]
        if "?" not in text[begin:end] and re.search(r" (?:[<>]=?|&&) ", text[begin:end]):
            yield "bound", begin, end, False


def changes(text):
    """(kind, begin, end, what stands there instead) of each place."""
    for kind, pattern, replacement in [
        ("barrier", r"__syncthreads\(\)", "(void)0"),
        ("warp barrier", r"__syncwarp\(\)", "(void)0"),
        ("wait", r"simt::copy_async_wait<\d+>\(\)", "(void)0"),
        ("mask", r"simt::kFullMask", "0x7fffffffu"),
    ]:
        for match in re.finditer(pattern, text):
            yield kind, match.start(), match.end(), replacement
    for kind, begin, end, is_early in conditions(text):
        both, either = terms(text, begin, end, "&&"), terms(text, begin, end, "||")
        if is_early:
            # Either term of a || ends early by itself; of a && each keeps the others from being looked at.
            for b, e in either:
                yield kind, b, e, "false"
            parts, value = (both, "true") if len(both) > 1 else ([], "")
        else:
            parts, value = either if len(either) == 1 and len(both) == 1 else both if len(either) == 1 else [], "true"
            if len(either) > 1 and any(is_check(text[b:e]) for b, e in either):
                b, e = terms(text, begin, end, ";")[0]
                yield kind, b, e, "true"
        for b, e in parts:
            if is_check(text[b:e]):
                yield kind, b, e, value


def mutations(operation):
    """(file, line number, name, changed text) of every place of the operation's kernels. No two have the same name."""
    for path in sorted((ROOT / "kernels" / operation).glob("*.cuh")):
        text = path.read_text()
        seen = {}
        places = set()
        for kind, begin, end, replacement in sorted(changes(run_time_code(text)), key=lambda change: change[1:3]):
            if (begin, end) in places:
                continue
            places.add((begin, end))
            line_start = text.rfind("\n", 0, begin) + 1
            line = " ".join(text[line_start : text.find("\n", begin)].split())
            what = " ".join(text[begin:end].split())
            name = f"{operation}/{path.name}: {kind}: {line}"
            if kind not in ("barrier", "warp barrier", "wait"):
                name = f"{operation}/{path.name}: {kind}: {what}: {line}"
            seen[name] = seen.get(name, 0) + 1
            if seen[name] > 1:
                name += f" [{seen[name]}]"
            yield path, text.count("\n", 0, begin) + 1, name, text[:begin] + replacement + text[end:]


# ---- Whether a test notices.


class Workshop:
    """A copy of what kernel tests are made of, and the objects that do not change."""

    def __init__(self, folder):
        self.folder = folder
        for name in ("kernels", "lib", "include", "tests/kernels", "tests/support"):
            shutil.rmtree(folder / name, ignore_errors=True)
            shutil.copytree(ROOT / name, folder / name)
        self.made = {}  # (source, kind): object, and the headers that it depends on

    def run(self, command, seconds, **more):
        try:
            done = subprocess.run(command, cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                  errors="replace", check=False, timeout=seconds, **more)
        except subprocess.TimeoutExpired:
            return 124, "ran too long"
        return done.returncode, done.stdout

    def compile(self, source, target, kind):
        flags = KINDS[kind]
        if kind == "thread" and source.startswith("kernels/simt/"):
            flags = ["-O1", "-DSIMT_TSAN"]  # what it notes about its fibers is no access of theirs
        command = [*CCACHE, "g++", "-std=c++20", "-ffp-contract=off", "-w", *flags, "-Ikernels", "-Ilib", "-Iinclude",
                   "-Itests", "-x", "c++", "-MMD", "-MF", f"{target}.d", "-c", source, "-o", target]
        return self.run(command, 600)

    def object(self, source, kind, changed):
        """(object, compiler's output where there is none). Made once, unless it includes the file `changed`."""
        known = self.made.get((source, kind))
        is_new = known is not None and changed in known[1]
        if known and not is_new:
            return known[0], ""
        target = f"{kind}-{source.replace('/', '-')}{'.changed' if is_new else ''}.o"
        status, output = self.compile(source, target, kind)
        if status:
            return None, output
        if not is_new:
            headers = set((self.folder / f"{target}.d").read_text().replace("\\\n", " ").split())
            self.made[source, kind] = target, headers
        return target, output

    def passes(self, operation, kind, seconds, changed=None):
        """(whether the test passes, or None where it does not compile; output; seconds that it ran)."""
        objects = []
        for source in [f"kernels/{operation}/{operation}.cu", *TESTS[operation], *COMMON]:
            target, output = self.object(source, kind, changed)
            if target is None:
                return None, output, 0.0
            objects.append(target)
        program = self.folder / f"{kind}-{operation}"
        status, output = self.run(["g++", *KINDS[kind], *objects, "-lboost_context", "-o", program], 600)
        if status:
            return None, output, 0.0
        limit = {}
        if kind == "release":
            limit["preexec_fn"] = lambda: resource.setrlimit(resource.RLIMIT_AS, (MEMORY_LIMIT, MEMORY_LIMIT))
        test = ["env", "TSAN_OPTIONS=halt_on_error=1", program, "--minimal", "--abort-after=1"]
        if kind == "thread" and operation in TOO_LONG_FOR_THREAD:
            test.append(f"--test-case-exclude={','.join(TOO_LONG_FOR_THREAD[operation])}")
        start = time.monotonic()
        status, output = self.run(test, seconds, **limit)
        return status == 0, output, time.monotonic() - start


def kinds_for(name):
    """The kinds of build in the order in which they are likely to notice."""
    return ["release", "thread", "address"] if "barrier: " in name else ["release", "address", "thread"]


def read_survivors():
    lines = SURVIVORS.read_text().splitlines()
    return {line.split(" | ")[0].strip() for line in lines if " | " in line}


def try_operation(shop, operation, argued):
    """The mutations of an operation: how many, those that survive without a reason, and the reasons without one."""
    limits = {}
    for kind in KINDS:
        clean, output, seconds = shop.passes(operation, kind, 1200)
        if not clean:
            sys.exit(f"{operation}, {kind}: the test fails without a mutation\n{output[-2000:]}")
        limits[kind] = 20 + 10 * seconds
        print(f"{operation}: without a mutation the {kind} build runs for {seconds:.0f} s", flush=True)
    n, unargued, unneeded = 0, [], {name for name in argued if name.startswith(f"{operation}/")}
    for path, number, name, changed in mutations(operation):
        copy = shop.folder / path.relative_to(ROOT)
        original = copy.read_text()
        copy.write_text(changed)
        verdict = "SURVIVED"
        for kind in kinds_for(name):
            passed, _, _ = shop.passes(operation, kind, limits[kind], str(path.relative_to(ROOT)))
            if not passed:
                verdict = "does not compile" if passed is None else f"caught ({kind})"
                break
        copy.write_text(original)
        n += 1
        if verdict == "SURVIVED":
            unneeded.discard(name)
            if name in argued:
                verdict = "survived, argued"
            else:
                unargued.append(f"{name} (line {number})")
        print(f"{verdict:18s} {name} (line {number})", flush=True)
    return n, unargued, unneeded


def main():
    arguments = sys.argv[1:]
    if not arguments or arguments[0].startswith("-") and arguments[0] not in ("--list", "--check"):
        sys.exit(__doc__)
    operations = arguments[1:] or list(TESTS)
    if unknown := [o for o in operations if o not in TESTS]:
        sys.exit(f"no operation {unknown[0]}: there are {', '.join(TESTS)}")
    argued = read_survivors()
    if arguments[0] == "--list":
        for operation in operations:
            for _, number, name, _ in mutations(operation):
                print(f"{name} (line {number})")
        return
    if arguments[0] == "--check":
        known = {name for operation in TESTS for _, _, name, _ in mutations(operation)}
        sys.exit("\n".join(f"no such place any more: {name}" for name in sorted(argued - known)) or 0)
    folder = pathlib.Path(arguments[0]).resolve()
    folder.mkdir(parents=True, exist_ok=True)
    shop = Workshop(folder)
    n, unargued, unneeded = 0, [], set()
    for operation in operations:
        of_operation = try_operation(shop, operation, argued)
        n += of_operation[0]
        unargued += of_operation[1]
        unneeded |= of_operation[2]
    for name in unargued:
        print(f"no reason: {name}")
    for name in sorted(unneeded):
        print(f"does not survive: {name}")
    print(f"{n} mutations, {len(unargued)} survive without a reason, {len(unneeded)} reasons for what does not survive")
    sys.exit(1 if unargued or unneeded else 0)


if __name__ == "__main__":
    main()
