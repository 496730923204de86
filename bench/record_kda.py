#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs bench_kda and the same mathematics written with PyTorch; writes the results file.

Usage, from the project's root: python bench/record_kda.py [--filter REGEX] [--out FILE]

`ms` is the best wall time. `busy_ms` is processor time over all threads for one call: on a machine
that others use too, it is the number to compare. Accuracy rows are accuracy_kda's, against fp64.

The forms written with PyTorch take minutes on the large cases, and the same time for every token or
chunk: of a case with more than `timed_tokens` of them the first are timed, and `ms` is scaled up.
Ends with the marks that the file is held against. About eight minutes on two quiet cores.
"""

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
from pathlib import Path

from record import processor

CASES = Path("bench/kda_cases.json")
K = V = 128
CHUNK = 64
ONE_CORE = "T4096_H8"


def read_cases():
    for entry in json.loads(CASES.read_text()):
        yield {**entry, "lengths": entry["lengths"] * entry.get("repeat", 1)}


def gflop(case):
    return 7 * K * V * case["heads"] * sum(case["lengths"]) / 1e9


def chosen(binary, pattern):
    """Every case on all processors by the best instruction set; one core and the older instruction
    sets on one case, for their share of the peak."""
    command = [binary, "--benchmark_list_tests", f"--benchmark_filter={pattern}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    names = done.stdout.decode().split()
    wide = any(".avx512/" in name for name in names)
    whole = [
        name for name in names if f"/t{os.cpu_count()}/" in name and not (wide and ".avx2/" in name)
    ]
    return sorted({*whole, *(name for name in names if f"/{ONE_CORE}/" in name)})


def own_rows(binary, pattern):
    """Rows of bench_kda and its ceilings; the best of its repetitions."""
    names = "|".join(name.replace(".", "[.]") for name in chosen(binary, pattern))
    command = [binary, "--benchmark_format=json", f"--benchmark_filter=^({names})$"]
    command += ["--benchmark_repetitions=3", "--benchmark_min_time=0.1"]
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
    """The best of up to five calls within some seconds, after one that warms torch up: cold it took
    seven times as long."""
    call()
    start = time.perf_counter()
    walls, busies = [], []
    while not walls or (len(walls) < 5 and time.perf_counter() - start < 3):
        before = time.perf_counter(), time.process_time()
        call()
        walls.append(time.perf_counter() - before[0])
        busies.append(time.process_time() - before[1])
    return 1e3 * min(walls), 1e3 * min(busies)


def peer_rows(pattern, threads):
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
    torch.set_num_threads(threads)
    for case in read_cases():
        for dtype in case["dtypes"]:
            for who in case["peers"]:
                if not re.search(pattern, f"{who}/{case['name']}/{dtype}/t{threads}/"):
                    continue
                lengths, scale = timed_lengths(who, case)
                x = inputs(torch, {**case, "lengths": lengths}, dtypes[dtype])
                with torch.no_grad():
                    ms, busy_ms = timed(lambda: forms[who](torch, x, lengths))  # noqa: B023
                rows.append({"group": "kda", "case": case["name"], "who": who})
                rows[-1] |= {"dtype": dtype, "threads": threads, "timed_tokens": sum(lengths)}
                rows[-1] |= {"ms": ms * scale, "busy_ms": busy_ms * scale}
    return rows, {"torch": torch.__version__}


def timed_lengths(who, case):
    """What is timed of a case, and the factor to the whole of it."""
    lengths, tokens = case["lengths"], sum(case["lengths"])
    most = 256 if who == "torch_kda_recurrent" else max(512, 16384 // case["heads"])
    if tokens <= most or case["name"] == ONE_CORE or len(lengths) > 1:
        return lengths, 1
    return [most], tokens / most


def marks(rows):
    """The figures that the results are held against, in lines."""
    peak = {r["case"]: r["gflops"] for r in rows if r["who"] == "fma_peak"}
    copy = next((r["gbps"] for r in rows if r["who"] == "copy"), None)
    ours = [r for r in rows if r["group"] == "kda" and r["who"] == "packattn"]
    for r in ours:
        target = r["implementation"].rpartition(".")[2]
        if r["case"] == ONE_CORE and r["threads"] == 1 and target in peak:
            share = r["busy_gflops"] / peak[target]
            yield f"{r['implementation']} {r['dtype']}: {share:.2f} of one core's peak"
        if r["case"].startswith("decode") and copy:
            yield f"{r['implementation']} {r['dtype']} decode: {r['gbps'] / copy:.2f} of a copy"
    most = max((r["threads"] for r in ours), default=1)
    best = {}
    for r in ours:
        if r["threads"] == most:
            form = "chunk" if "kda_chunk" in r["implementation"] else "recurrent"
            key = (r["case"], r["dtype"], form)
            if key not in best or r["ms"] < best[key]["ms"]:
                best[key] = r
    for (case, dtype, form), r in best.items():
        other = best.get((case, dtype, "recurrent"))
        if form == "chunk" and other:
            yield f"{case} {dtype}: recurrence / chunk {other['ms'] / r['ms']:.2f}"
        for peer in rows:
            if (peer.get("case"), peer.get("dtype"), peer["who"]) == (
                case,
                dtype,
                f"torch_kda_{form}",
            ):
                yield f"{case} {dtype}: torch {form} / ours {peer['ms'] / r['ms']:.0f}"
    for (case, dtype, form), r in best.items():
        if re.fullmatch(r"T\d+_H8", case):
            tokens = int(case[1:].partition("_")[0])
            memory = r["workspace_mib"]
            each = 1e3 * r["ms"] / tokens
            yield f"{case} {dtype} {form}: {each:.2f} us a token, {memory:.2f} MiB"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--binaries", type=Path, default=Path("build/release/bench"))
    parser.add_argument("--filter", default=".", help="regular expression on case names")
    parser.add_argument("--out", type=Path, default=Path("bench/results/cpu-kda.json"))
    parser.add_argument("--no-accuracy", dest="accuracy", action="store_false")
    options = parser.parse_args()

    rows = own_rows(options.binaries / "bench_kda", options.filter)
    peers, versions = peer_rows(options.filter, os.cpu_count())
    cases = {case["name"]: case for case in read_cases()}
    for row in (all_rows := rows + peers):
        if row["group"] != "kda":
            continue
        row["gflops"] = gflop(cases[row["case"]]) / row["ms"] * 1e3
        row["busy_gflops"] = gflop(cases[row["case"]]) / row["busy_ms"] * 1e3
        if row["case"].startswith("decode"):
            row["gbps"] = 8 / 7 * row["gflops"]
    if options.accuracy:
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
    print("\n".join(marks(all_rows)))
    print(f"record_kda: {len(all_rows)} rows in {options.out}")


if __name__ == "__main__":
    main()
