#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The neighbours of KDA on the command line: run_layers.py PATH/TO/packattn."""

import json
import math

import command
from command import CommandTest
from tensors import floats, integers, load, save


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


class Layers(CommandTest):
    def save(self, metadata=None, **tensors):
        save(self.path / "in.safetensors", tensors, metadata)

    def compute(self, *arguments):
        """Runs every implementation; the tensors that they agree on."""
        rows = json.loads(self.run_command("why", "in.safetensors", "--json", *arguments))
        results = []
        for row in rows:
            if "code" in row:
                continue
            name = row["implementation"]
            self.run_command(
                "run", "in.safetensors", "-o", "out", "--implementation", name, *arguments
            )
            results.append(load(self.path / "out")[0])
        self.assertGreaterEqual(len(results), 1)
        for result in results:
            self.assertEqual(result.keys(), results[0].keys())
            for name, (shape, values) in result.items():
                self.assertEqual(shape, results[0][name][0])
                self.assert_close(values, results[0][name][1])
        return results[0]

    def assert_close(self, found, expected):
        self.assertEqual(len(found), len(expected))
        for a, b in zip(found, expected, strict=True):
            self.assertAlmostEqual(a, b, delta=1e-5 + 1e-5 * abs(b))

    def test_gate(self):
        self.save(g=floats(1, 3, 2, 4), A_log=floats(2, step=0.5), dt_bias=floats(8, step=0.2))
        raw, rates, bias = floats(24)[2], floats(2, step=0.5)[2], floats(8, step=0.2)[2]
        x = [raw[i] + bias[i % 8] for i in range(24)]
        rate = [math.exp(rates[i // 4 % 2]) for i in range(24)]
        out = self.compute("--gate", "softplus")["out"]
        self.assertEqual(out[0], [1, 3, 2, 4])
        self.assert_close(
            out[1], [-r * math.log1p(math.exp(v)) for r, v in zip(rate, x, strict=True)]
        )
        out = self.compute("--op", "kda_gate", "--gate", "bounded", "--lower-bound", "-3")["out"]
        self.assert_close(out[1], [-3 * sigmoid(r * v) for r, v in zip(rate, x, strict=True)])

    def test_l2norm(self):
        self.save({"packattn.op": "l2norm"}, x=floats(3, 5))
        rows = [floats(15)[2][i : i + 5] for i in (0, 5, 10)]
        wanted = [v / math.sqrt(sum(w * w for w in row) + 0.25) for row in rows for v in row]
        self.assert_close(self.compute("--eps", "0.25")["out"][1], wanted)

    def test_gated_rms_norm(self):
        x, z, r = floats(2, 4), floats(2, 4, step=0.9), floats(2, 4, step=0.1)
        self.save(x=x, gate=z, residual=r, weight=floats(4, step=0.7))
        sums = [a + b for a, b in zip(x[2], r[2], strict=True)]
        for activation, f in (("swish", lambda v: v * sigmoid(v)), ("sigmoid", sigmoid)):
            tensors = self.compute(
                "--op", "gated_rms_norm", "--activation", activation, "--residual-out"
            )
            self.assert_close(tensors["residual_out"][1], sums)
            wanted = []
            for i, value in enumerate(sums):
                row = sums[i // 4 * 4 : i // 4 * 4 + 4]
                scale = math.sqrt(sum(v * v for v in row) / 4 + 1e-5)
                wanted.append(value / scale * floats(4, step=0.7)[2][i % 4] * f(z[2][i]))
            self.assert_close(tensors["out"][1], wanted)

    def test_short_convolution_keeps_its_state(self):
        x, weight = floats(5, 2), floats(2, 3, step=0.8)
        self.save(x=x, weight=weight, cu_seqlens=integers(0, 2, 5))
        tensors = self.compute("--op", "short_convolution", "--silu", "--final-state")
        at = lambda t, c: x[2][2 * t + c]  # noqa: E731
        wanted = []
        for t in range(5):
            first = 0 if t < 2 else 2
            for c in range(2):
                y = sum(
                    weight[2][3 * c + i] * at(t - 2 + i, c) for i in range(3) if t - 2 + i >= first
                )
                wanted.append(y * sigmoid(y))
        self.assert_close(tensors["out"][1], wanted)
        shape, final = tensors["final_state"]
        self.assertEqual(shape, [2, 2, 2])
        self.assert_close(final, [at(t, c) for n in (0, 3) for c in range(2) for t in (n, n + 1)])
        # A state in the file is read, and its new value written.
        self.save(x=x, weight=weight, cu_seqlens=integers(0, 2, 5), state=("F32", [2, 2, 2], final))
        again = self.compute("--op", "short_convolution")
        self.assert_close(again["state"][1], final)
        self.assertNotEqual(again["out"][1], tensors["out"][1])

    def test_faults_and_options_of_other_operations(self):
        self.save(x=floats(5, 2), weight=floats(3, 3), cu_seqlens=integers(1, 5))
        out = self.run_command("check", "in.safetensors", "--op", "short_convolution", status=2)
        for text in ("error[PA2005]", "error[PA1010]: weight", "2 faults in this call"):
            self.assertIn(text, out)
        self.assertIn(
            "x alone does not tell it", self.run_command("run", "in.safetensors", status=2)
        )
        refused = self.run_command("check", "in.safetensors", "--op", "l2norm", "--silu", status=2)
        self.assertIn("error[PA1105]: silu", refused)
        for op, tensor in (("kda_gate", "g"), ("short_convolution", "weight"), ("l2norm", "x")):
            self.save(other=floats(2, 2), **({"x": floats(2, 2)} if tensor == "weight" else {}))
            out = self.run_command("run", "in.safetensors", "--op", op, status=1)
            self.assertIn("error[PA7003]: ", out)
            self.assertIn(tensor, out)

    def test_descriptions(self):
        big = {"dtype": "bf16", "shape": [1 << 20, 1 << 14], "device": "cuda:0"}
        call = {"op": "l2norm", "tensors": {"x": big}, "options": {"eps": 1e-5}}
        self.assertIn(
            "no faults\nl2norm: x [1048576, 16384] bf16",
            self.run_command("check", self.write_json(call)),
        )
        call["tensors"]["x"] = {**big, "device": "cpu"}
        call["op"] = "short_convolution"
        call["options"] = {}
        call["tensors"] |= {
            "weight": {"dtype": "fp32", "shape": [1 << 14, 4]},
            "state": {"dtype": "fp32", "shape": [4, 1 << 14, 3]},
            "slots": [3, 5],
            "cu_seqlens": [0, 2, 1 << 20],
        }
        out = self.run_command("check", self.write_json(call), status=2)
        self.assertIn("error[PA6008]: slots is 5 at index 1", out)
        call["tensors"]["slots"] = [3, 1]
        self.assertIn("ref/short_convolution", self.run_command("why", self.write_json(call)))

    def test_bench_has_none(self):
        self.assertIn("kda_chunk", self.run_command("bench", "--op", "l2norm", status=2))


if __name__ == "__main__":
    command.main()
