#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench_softmax and PyTorch's CPU attention on the same cases; writes the results file.

Usage, from the project's root: python bench/record.py [--filter REGEX] [--out FILE]

One file holds one run: packattn, its peers and the ceilings of the machine, so that ratios inside
a file mean something. `ms` is the best wall time. `busy_ms` is processor time over all threads for
one call: on a machine that others use too, it is the number to compare.
"""

import argparse
import datetime
import json
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

CASES = Path("bench/softmax_cases.json")
PEERS = ("torch_sdpa_each", "torch_sdpa_padded")


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


def own_rows(binary, pattern):
    """Rows of bench_softmax and its ceilings; the best of its repetitions."""
    command = [binary, "--benchmark_format=json", f"--benchmark_filter={pattern}"]
    command += ["--benchmark_repetitions=5", "--benchmark_min_time=0.2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    report = json.loads(done.stdout)
    best = {}
    for run in report["benchmarks"]:
        if run["run_type"] == "aggregate":
            continue
        kept = best.setdefault(run["name"], run)
        if run["busy_ms"] < kept["busy_ms"]:
            kept["busy_ms"] = run["busy_ms"]
        kept["real_time"] = min(kept["real_time"], run["real_time"])
    rows = []
    for name, run in best.items():
        who, case, dtype, threads = re.match(r"(cpu/[^/]+)/([^/]+)/([^/]+)/t(\d+)", name).groups()
        row = {"group": "softmax", "case": case, "who": "packattn", "implementation": who}
        row |= {"dtype": dtype, "threads": int(threads)}
        row |= {"ms": run["real_time"], "busy_ms": run["busy_ms"]}
        if "relerr" in run:
            row["relerr"] = run["relerr"]
        rows.append(row)
    for key, value in report["context"].items():
        if key.startswith("fma_peak"):
            target = key.removeprefix("fma_peak_")
            rows.append({"group": "ceilings", "case": target, "who": "fma_peak", "threads": 1})
            rows[-1] |= {"dtype": "fp32", "gflops": float(value)}
        elif key == "copy":
            rows.append({"group": "ceilings", "case": "copy", "who": "copy"})
            rows[-1] |= {"threads": report["context"]["num_cpus"], "gbps": float(value)}
        elif key.startswith("memory_mib"):
            target = key.removeprefix("memory_mib_")
            rows.append({"group": "memory", "case": "full_1x8192_H1_D64", "who": "packattn"})
            rows[-1] |= {"implementation": f"cpu/attention.{target}", "grown_mib": float(value)}
    return rows


def torch_call(torch, case, dtype, who):
    """A function that attends once: each sequence alone, or all padded to the longest."""
    attend = torch.nn.functional.scaled_dot_product_attention
    shape = lambda n, heads: (1, heads, n, case["dim"])  # noqa: E731
    draw = lambda n, heads: torch.randn(shape(n, heads)).to(dtype)  # noqa: E731
    grouped = case["heads_q"] != case["heads_k"]
    lengths = list(zip(case["lengths_q"], case["lengths_k"], strict=True))
    sequences = [
        (draw(q, case["heads_q"]), draw(k, case["heads_k"]), draw(k, case["heads_k"]))
        for q, k in lengths
    ]
    if who == "torch_sdpa_each":
        # One query at the end sees every key; is_causal would align it to the first.
        causal = case["causal"] and case["lengths_q"] == case["lengths_k"]

        def each():
            for q, k, v in sequences:
                attend(q, k, v, is_causal=causal, enable_gqa=grouped)

        return each

    longest_q, longest_k = max(case["lengths_q"]), max(case["lengths_k"])
    pad = lambda x, n: torch.nn.functional.pad(x, (0, 0, 0, n - x.shape[2]))  # noqa: E731
    q = torch.cat([pad(x[0], longest_q) for x in sequences])
    k = torch.cat([pad(x[1], longest_k) for x in sequences])
    v = torch.cat([pad(x[2], longest_k) for x in sequences])
    mask = torch.zeros(len(lengths), 1, longest_q, longest_k, dtype=torch.bool)
    for n, (rows, keys) in enumerate(lengths):
        allowed = torch.ones(rows, keys, dtype=torch.bool)
        mask[n, 0, :rows, :keys] = allowed.tril(keys - rows) if case["causal"] else allowed
        mask[n, 0, rows:, 0] = True  # a row without keys would be NaN
    return lambda: attend(q, k, v, attn_mask=mask, enable_gqa=grouped)


def peer_rows(pattern, thread_counts):
    try:
        import torch
    except ImportError:
        print("record: torch is not installed; its rows are left out", file=sys.stderr)
        return [], {}
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    rows = []
    for case in read_cases():
        for dtype in case["dtypes"]:
            for threads in thread_counts:
                for who in PEERS:
                    if not re.search(pattern, f"{who}/{case['name']}/{dtype}/t{threads}"):
                        continue
                    torch.set_num_threads(threads)
                    with torch.no_grad():
                        call = torch_call(torch, case, dtypes[dtype], who)
                        ms, busy_ms = best_time(call)
                    rows.append({"group": "softmax", "case": case["name"], "who": who})
                    rows[-1] |= {"dtype": dtype, "threads": threads, "ms": ms, "busy_ms": busy_ms}
    return rows, {"torch": torch.__version__}


def best_time(call, seconds=1.5):
    call()
    wall = busy = float("inf")
    end = time.perf_counter() + seconds
    while True:
        before = time.perf_counter(), time.process_time()
        call()
        wall = min(wall, time.perf_counter() - before[0])
        busy = min(busy, time.process_time() - before[1])
        if time.perf_counter() > end:
            return 1e3 * wall, 1e3 * busy


def processor():
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.machine()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binary", default="build/release/bench/bench_softmax")
    parser.add_argument("--filter", default=".", help="regular expression on case names")
    parser.add_argument("--out", type=Path, default=Path("bench/results/cpu-softmax.json"))
    options = parser.parse_args()

    rows = own_rows(options.binary, options.filter)
    counts = sorted({row["threads"] for row in rows if row["group"] == "softmax"})
    peers, versions = peer_rows(options.filter, counts)
    flops = {case["name"]: gflop(case) for case in read_cases()}
    for row in (all_rows := rows + peers):
        if row["group"] == "softmax":
            row["gflops"] = flops[row["case"]] / row["ms"] * 1e3
            row["busy_gflops"] = flops[row["case"]] / row["busy_ms"] * 1e3
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    meta = {
        "date": datetime.date.today().isoformat(),
        "device": processor(),
        "commit": commit.stdout.strip(),
        "versions": {"python": platform.python_version(), **versions},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"meta": meta, "rows": all_rows}, indent=1) + "\n")
    print(f"record: {len(all_rows)} rows in {options.out}")


if __name__ == "__main__":
    main()
