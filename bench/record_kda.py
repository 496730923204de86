#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench_kda and the same mathematics written with PyTorch; writes the results file.

Usage, from the project's root: python bench/record_kda.py [--filter REGEX] [--out FILE]

`ms` is the best wall time. `busy_ms` is processor time over all threads for one call: on a machine
that others use too, it is the number to compare. Accuracy rows are accuracy_kda's, against fp64.
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

from record import best_time, processor

CASES = Path("bench/kda_cases.json")
K = V = 128
CHUNK = 64


def read_cases():
    for entry in json.loads(CASES.read_text()):
        yield {**entry, "lengths": entry["lengths"] * entry.get("repeat", 1)}


def gflop(case):
    return 7 * K * V * case["heads"] * sum(case["lengths"]) / 1e9


def own_rows(binary, pattern):
    """Rows of bench_kda and its ceilings; the best of its repetitions."""
    command = [binary, "--benchmark_format=json", f"--benchmark_filter={pattern}"]
    command += ["--benchmark_repetitions=3", "--benchmark_min_time=0.2"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    report = json.loads(done.stdout)
    best = {}
    for run in report["benchmarks"]:
        if run["run_type"] == "aggregate":
            continue
        kept = best.setdefault(run["name"], run)
        for key in ("busy_ms", "real_time"):
            kept[key] = min(kept[key], run[key])
    rows = []
    for name, run in best.items():
        who, case, dtype, threads = re.match(r"(cpu/[^/]+)/([^/]+)/([^/]+)/t(\d+)", name).groups()
        row = {"group": "kda", "case": case, "who": "packattn", "implementation": who}
        row |= {"dtype": dtype, "threads": int(threads)}
        row |= {"ms": run["real_time"], "busy_ms": run["busy_ms"]}
        row["workspace_mib"] = run["workspace_mib"]
        rows.append(row)
    for key, value in report["context"].items():
        if key.startswith("fma_peak"):
            target = key.removeprefix("fma_peak_")
            rows.append({"group": "ceilings", "case": target, "who": "fma_peak", "threads": 1})
            rows[-1] |= {"dtype": "fp32", "gflops": float(value)}
        elif key == "copy":
            rows.append({"group": "ceilings", "case": "copy", "who": "copy"})
            rows[-1] |= {"threads": report["context"]["num_cpus"], "gbps": float(value)}
    return rows


def accuracy_rows(binary):
    done = subprocess.run([binary], stdout=subprocess.PIPE, check=True, text=True)
    rows = []
    for line in done.stdout.splitlines()[2:]:
        name, layout, case, tokens, dtype, out, state = (
            cell.strip() for cell in line.strip("| ").split("|")
        )
        rows.append({"group": "accuracy", "case": case, "who": "packattn", "implementation": name})
        rows[-1] |= {"layout": layout, "tokens": int(tokens), "dtype": dtype}
        rows[-1] |= {"relerr": float(out), "relerr_state": float(state)}
    return rows


def inputs(torch, case, dtype):
    """Normalised q and k, log decays, betas: what both forms below start from, by head."""
    tokens, heads = sum(case["lengths"]), case["heads"]
    draw = lambda *shape: torch.randn(heads, *shape)  # noqa: E731
    raw = {"q": draw(tokens, K), "k": draw(tokens, K), "v": draw(tokens, V)}
    raw = {name: x.to(dtype) for name, x in raw.items()}
    return {**raw, "g": draw(tokens, K), "beta": draw(tokens), "state": torch.zeros(heads, K, V)}


def prepare(torch, x):
    unit = lambda t: t / (t.square().sum(-1, keepdim=True) + 1e-6).sqrt()  # noqa: E731
    q, k = unit(x["q"].float()) * K**-0.5, unit(x["k"].float())
    return q, k, x["v"].float(), -5 * torch.sigmoid(x["g"]), torch.sigmoid(x["beta"])


def recurrent(torch, x, lengths):
    """The recurrence, token by token, all heads at once."""
    q, k, v, g, beta = prepare(torch, x)
    out, start = torch.empty_like(v), 0
    for length in lengths:
        state = x["state"].clone()
        for t in range(start, start + length):
            state *= g[:, t, :, None].exp()
            missing = v[:, t] - torch.einsum("hk,hkv->hv", k[:, t], state)
            state += torch.einsum("hk,hv->hkv", k[:, t], beta[:, t, None] * missing)
            out[:, t] = torch.einsum("hk,hkv->hv", q[:, t], state)
        start += length
    return out.to(x["v"].dtype)


def chunked(torch, x, lengths):
    """The chunked form: all chunks of a sequence at once, except for the state."""
    out, start = torch.empty_like(x["v"]), 0
    for length in lengths:
        part = {
            name: t if name == "state" else t[:, start : start + length] for name, t in x.items()
        }
        out[:, start : start + length] = chunked_sequence(torch, part)
        start += length
    return out


def chunked_sequence(torch, x):
    length = x["beta"].shape[1]
    spare = -length % CHUNK
    padded = []
    for t in prepare(torch, x):
        t = torch.nn.functional.pad(t, (0, 0, 0, spare) if t.dim() == 3 else (0, spare))
        padded.append(t.unflatten(1, (-1, CHUNK)))
    q, k, v, g, beta = padded
    total = g.cumsum(2)
    A = torch.zeros(*beta.shape, CHUNK)
    B = torch.zeros_like(A)
    for j in range(CHUNK):
        # Later rows see key j through exp(G_i - G_j), which is never above 1.
        seen = k[:, :, j, None] * (total[:, :, j:] - total[:, :, j, None]).exp()
        A[..., j:, j] = (k[:, :, j:] * seen).sum(-1)
        B[..., j:, j] = (q[:, :, j:] * seen).sum(-1)
    A = beta[..., None] * A.tril(-1)
    right = torch.cat([beta[..., None] * k * total.exp(), beta[..., None] * v], -1)
    solved = torch.linalg.solve_triangular(
        A + torch.eye(CHUNK), right, upper=False, unitriangular=True
    )
    W, U = solved.split([K, V], -1)
    state, out = x["state"].clone(), torch.empty_like(v)
    for c in range(v.shape[1]):
        E = U[:, c] - W[:, c] @ state
        out[:, c] = (q[:, c] * total[:, c].exp()) @ state + B[:, c] @ E
        last = total[:, c, -1]
        kept = k[:, c] * (last[:, None] - total[:, c]).exp()
        state = last.exp()[..., None] * state + kept.transpose(1, 2) @ E
    return out.flatten(1, 2)[:, :length].to(x["v"].dtype)


def timed(call):
    """The best of several calls; of one that takes long, the only one."""
    before = time.perf_counter(), time.process_time()
    call()
    wall, busy = time.perf_counter() - before[0], time.process_time() - before[1]
    return (1e3 * wall, 1e3 * busy) if wall > 2 else best_time(call)


def peer_rows(pattern, thread_counts):
    try:
        import torch
    except ImportError:
        print("record_kda: torch is not installed; its rows are left out", file=sys.stderr)
        return [], {}
    probe = inputs(torch, {"lengths": [70, 130], "heads": 2}, torch.float32)
    assert torch.allclose(
        recurrent(torch, probe, [70, 130]), chunked(torch, probe, [70, 130]), atol=1e-5
    )
    forms = {"torch_kda_recurrent": recurrent, "torch_kda_chunk": chunked}
    dtypes = {"fp32": torch.float32, "bf16": torch.bfloat16}
    rows = []
    for case in read_cases():
        for dtype in case["dtypes"]:
            x = inputs(torch, case, dtypes[dtype])
            for threads in thread_counts:
                for who, form in ((who, forms[who]) for who in case["peers"]):
                    if not re.search(pattern, f"{who}/{case['name']}/{dtype}/t{threads}"):
                        continue
                    torch.set_num_threads(threads)
                    with torch.no_grad():
                        ms, busy_ms = timed(lambda: form(torch, x, case["lengths"]))  # noqa: B023
                    rows.append({"group": "kda", "case": case["name"], "who": who})
                    rows[-1] |= {"dtype": dtype, "threads": threads, "ms": ms, "busy_ms": busy_ms}
    return rows, {"torch": torch.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binaries", type=Path, default=Path("build/release/bench"))
    parser.add_argument("--filter", default=".", help="regular expression on case names")
    parser.add_argument("--out", type=Path, default=Path("bench/results/cpu-kda.json"))
    options = parser.parse_args()

    rows = own_rows(options.binaries / "bench_kda", options.filter)
    counts = sorted({row["threads"] for row in rows if row["group"] == "kda"})
    peers, versions = peer_rows(options.filter, counts)
    cases = {case["name"]: case for case in read_cases()}
    for row in (all_rows := rows + peers):
        if row["group"] != "kda":
            continue
        row["gflops"] = gflop(cases[row["case"]]) / row["ms"] * 1e3
        row["busy_gflops"] = gflop(cases[row["case"]]) / row["busy_ms"] * 1e3
        if row["case"].startswith("decode"):
            row["gbps"] = 8 / 7 * row["gflops"]
    all_rows += accuracy_rows(options.binaries / "accuracy_kda")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    meta = {
        "date": datetime.date.today().isoformat(),
        "device": processor(),
        "commit": commit.stdout.strip(),
        "versions": {"python": platform.python_version(), **versions},
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps({"meta": meta, "rows": all_rows}, indent=1) + "\n")
    print(f"record_kda: {len(all_rows)} rows in {options.out}")


if __name__ == "__main__":
    main()
