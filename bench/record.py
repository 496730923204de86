#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Measures packattn's CPU attention beside PyTorch's on the same cases; writes the results file.

Usage, from the project's root, with the package and torch installed:
  python bench/record.py [--filter REGEX] [--peers FILE.py] [--out FILE]

The runs are paired: in every round each implementation has a turn on the same tensors in the same
process, and a turn is a call that does not count and then calls for a tenth of a second. `ms` is
the median over the rounds of a turn's median, `ratio` the median over the rounds of a peer's time
by that of packattn's default, `busy_ms` the processor time of a call over all threads, `relerr` the
relative norm error against fp64. One file holds one run: packattn, its peers and the ceilings of
the machine, so that ratios inside a file mean something.

--peers names a Python file with more of them: `peers(torch, case, tensors, causal)` returns, for
what it takes, {who: a function without arguments that returns the output or None}; `versions` is a
dictionary that goes into the file.
"""

import argparse
import datetime
import importlib.util
import json
import logging
import os
import platform
import re
import statistics
import subprocess
import time
import warnings
from pathlib import Path

CASES = Path("bench/softmax_cases.json")
ROUNDS = 5
TURN_SECONDS = 0.1
MOST_SECONDS = 4
PAUSE_SECONDS = 0.03  # threads that wait for more work of the one before fall asleep


def read_cases():
    for entry in json.loads(CASES.read_text()):
        repeat = entry.get("repeat", 1)
        lengths_q = entry["lengths_q"] * repeat
        lengths_k = entry.get("lengths_k", entry["lengths_q"]) * repeat
        yield {**entry, "lengths_q": lengths_q, "lengths_k": lengths_k}


def gflop(case):
    pairs = sum(
        q * k - (q * (q - 1) / 2 if case["causal"] else 0)
        for q, k in zip(case["lengths_q"], case["lengths_k"], strict=True)
    )
    return 4 * case["dim"] * case["heads_q"] * pairs / 1e9


def is_decode(case):
    return max(case["lengths_q"]) == 1


def gigabytes(case):
    """K and V, once."""
    elements = 2 * sum(case["lengths_k"]) * case["heads_k"] * case["dim"]
    return elements * (4 if case["dtype"] == "fp32" else 2) / 1e9


def ceiling_rows(binary):
    """What the machine can do at most, and how much memory a long sequence takes."""
    command = [binary, "--benchmark_format=json", "--benchmark_filter=full_1x2048_H1/"]
    command += ["--benchmark_min_time=0.01"]  # no context without a result
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    rows = []
    for line in done.stdout.decode().splitlines():
        found = re.match(r'\s*"(fma_peak|copy|read|memory_mib)_(\w+)": "([0-9.e+-]+)"', line)
        if not found:
            continue
        what, which, value = found[1], found[2], float(found[3])
        if what == "fma_peak":
            rows.append({"group": "ceilings", "case": which, "who": what, "threads": 1})
            rows[-1] |= {"gflops": value}
        elif what == "memory_mib":
            rows.append({"group": "memory", "case": "full_1x8192_H1_D64", "who": "packattn"})
            rows[-1] |= {"implementation": f"cpu/attention.{which}", "grown_mib": value}
        else:
            rows.append({"group": "ceilings", "case": what, "who": what})
            rows[-1] |= {"threads": int(which.removeprefix("t")), "gbps": value}
    return rows


def draw(torch, case):
    torch.manual_seed(1)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[case["dtype"]]
    shape = lambda lengths, heads: (sum(lengths), heads, case["dim"])  # noqa: E731
    q = torch.randn(shape(case["lengths_q"], case["heads_q"])).to(dtype)
    k, v = (torch.randn(shape(case["lengths_k"], case["heads_k"])).to(dtype) for _ in "kv")
    return q, k, v


def by_sequence(case, tensors):
    """[1, heads, length, dim] of each sequence."""
    lengths = (case["lengths_q"], case["lengths_k"], case["lengths_k"])
    parts = [
        [x.transpose(0, 1)[None] for x in t.split(n)] for t, n in zip(tensors, lengths, strict=True)
    ]
    return list(zip(*parts, strict=True))


def packed(outputs):
    """[tokens, heads, dim] of the outputs of `by_sequence`'s parts."""
    return [out[0].transpose(0, 1) for out in outputs]


def expected(torch, case, tensors):
    """In fp64, a head at a time."""
    grouped = case["heads_q"] // case["heads_k"]
    outputs = []
    for q, k, v in by_sequence(case, tensors):
        length_q, length_k = q.shape[2], k.shape[2]
        hidden = torch.ones(length_q, length_k, dtype=torch.bool).triu(length_k - length_q + 1)
        heads = []
        for h in range(case["heads_q"]):
            scores = q[0, h].double() @ k[0, h // grouped].double().T * case["dim"] ** -0.5
            if case["causal"]:
                scores.masked_fill_(hidden, -torch.inf)
            heads.append(scores.softmax(-1) @ v[0, h // grouped].double())
        outputs.append(torch.stack(heads, 1))
    return torch.cat(outputs)


def torch_peers(torch, case, tensors, causal):
    attend = torch.nn.functional.scaled_dot_product_attention
    grouped = case["heads_q"] != case["heads_k"]
    sequences = by_sequence(case, tensors)

    def each():
        return packed([attend(*s, is_causal=causal, enable_gqa=grouped) for s in sequences])

    longest_q, longest_k = max(case["lengths_q"]), max(case["lengths_k"])
    pad = lambda x, n: torch.nn.functional.pad(x, (0, 0, 0, n - x.shape[2]))  # noqa: E731
    q = torch.cat([pad(s[0], longest_q) for s in sequences])
    k, v = (torch.cat([pad(s[i], longest_k) for s in sequences]) for i in (1, 2))
    mask = torch.zeros(len(sequences), 1, longest_q, longest_k, dtype=torch.bool)
    for n, (rows, keys) in enumerate(zip(case["lengths_q"], case["lengths_k"], strict=True)):
        allowed = torch.ones(rows, keys, dtype=torch.bool)
        mask[n, 0, :rows, :keys] = allowed.tril(keys - rows) if case["causal"] else allowed
        mask[n, 0, rows:, 0] = True  # a row without keys would be NaN

    def padded():
        out = attend(q, k, v, attn_mask=mask, enable_gqa=grouped).transpose(1, 2)
        return [out[n, :rows] for n, rows in enumerate(case["lengths_q"])]

    nested_q, nested_k, nested_v = (
        torch.nested.nested_tensor_from_jagged(
            t,
            torch.tensor([0, *lengths]).cumsum(0),
            min_seqlen=min(lengths),
            max_seqlen=max(lengths),
        ).transpose(1, 2)
        for t, lengths in zip(
            tensors, (case["lengths_q"], case["lengths_k"], case["lengths_k"]), strict=True
        )
    )

    def nested():
        out = attend(nested_q, nested_k, nested_v, is_causal=causal, enable_gqa=grouped)
        return out.transpose(1, 2).values()

    return {"torch_sdpa_each": each, "torch_sdpa_padded": padded, "torch_sdpa_nested": nested}


def own_calls(packattn, case, tensors, threads):
    """packattn as it chooses, and each implementation by name."""
    batch = packattn.PackedBatch.from_lengths(case["lengths_q"], case["lengths_k"])
    verdicts = packattn.why(*tensors, batch, causal=case["causal"])
    names = [v.implementation for v in verdicts if not v.declined]
    names = [name for name in names if name.startswith("cpu/")]
    out = tensors[0].clone()

    def call(name):
        return lambda: packattn.attention(
            *tensors, batch, causal=case["causal"], out=out, threads=threads, implementation=name
        )

    return {name: call(name) for name in names}


def turn(call):
    """Median wall and processor milliseconds of the calls of one turn."""
    time.sleep(PAUSE_SECONDS)
    call()
    walls, busies = [], []
    end = time.perf_counter() + TURN_SECONDS
    while not walls or time.perf_counter() < end:
        before = time.perf_counter(), time.process_time()
        call()
        walls.append(1e3 * (time.perf_counter() - before[0]))
        busies.append(1e3 * (time.process_time() - before[1]))
    return statistics.median(walls), statistics.median(busies)


def error_of(torch, out, want):
    if out is None:
        return None
    out = torch.cat(list(out)) if isinstance(out, list | tuple) else out
    return float((out.reshape(want.shape).double() - want).norm() / want.norm())


def measure_case(torch, packattn, case, more, pattern, threads):
    torch.set_num_threads(threads)
    tensors = draw(torch, case)
    # One query at the end sees every key; is_causal would align it to the first.
    causal = case["causal"] and case["lengths_q"] == case["lengths_k"]
    own = own_calls(packattn, case, tensors, threads)
    calls = {**own, **torch_peers(torch, case, tensors, causal)}
    if more:
        calls |= more.peers(torch, case, tensors, causal)
    label = f"{case['name']}/{case['dtype']}/t{threads}"
    calls = {who: call for who, call in calls.items() if re.search(pattern, f"{who}/{label}")}
    want = expected(torch, case, tensors)
    rows, turns = {}, {}
    for who in list(calls):
        try:
            start = time.perf_counter()
            error = error_of(torch, calls[who](), want)
            if time.perf_counter() - start > MOST_SECONDS:
                raise RuntimeError(f"a call takes more than {MOST_SECONDS} s")
        except RuntimeError as refusal:
            print(f"record: {who} is left out of {label}: {str(refusal).splitlines()[0]}")
            del calls[who]
            continue
        rows[who] = {"group": "softmax", "case": case["name"]}
        rows[who] |= {"who": "packattn", "implementation": who} if who in own else {"who": who}
        rows[who] |= {"dtype": case["dtype"], "threads": threads, "relerr": error}
        turns[who] = []
    for _ in range(ROUNDS):
        for who, call in calls.items():
            turns[who].append(turn(call))
    default = next((who for who in calls if who in own), None)
    for who, row in rows.items():
        row["ms"] = statistics.median(wall for wall, _ in turns[who])
        row["busy_ms"] = statistics.median(busy for _, busy in turns[who])
        row["gflops"] = gflop(case) / row["ms"] * 1e3
        if is_decode(case):
            row["gbps"] = gigabytes(case) / row["ms"] * 1e3
        if default:
            pairs = zip(turns[who], turns[default], strict=True)
            row["ratio"] = statistics.median(other[0] / ours[0] for other, ours in pairs)
        print(f"{who:28} {label:45} {row['ms']:10.3f} ms {row.get('ratio', 0):6.2f}", flush=True)
    return list(rows.values())


def load_peers(path):
    if path is None:
        return None
    spec = importlib.util.spec_from_file_location("more_peers", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", default="build/release/bench/bench_softmax")
    parser.add_argument("--filter", default=".", help="regular expression on who/case/dtype/t2")
    parser.add_argument("--peers", type=Path, help="a Python file with more peers")
    parser.add_argument("--out", type=Path, default=Path("bench/results/cpu-softmax.json"))
    options = parser.parse_args()

    import packattn
    import torch

    warnings.filterwarnings("ignore", module="torch")
    logging.getLogger("torch").setLevel(logging.ERROR)
    more = load_peers(options.peers)
    rows = ceiling_rows(options.binary)
    with torch.no_grad():
        for case in read_cases():
            for dtype in case["dtypes"]:
                for threads in sorted({1, os.cpu_count()}):
                    rows += measure_case(
                        torch, packattn, {**case, "dtype": dtype}, more, options.filter, threads
                    )
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    meta = {
        "date": datetime.date.today().isoformat(),
        "device": processor(),
        "processors": os.cpu_count(),
        "kernel": platform.release(),
        "commit": commit.stdout.strip(),
        "versions": versions | (more.versions if more else {}),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"meta": meta, "rows": rows}, indent=1) + "\n")
    print(f"record: {len(rows)} rows in {options.out}")


if __name__ == "__main__":
    main()
