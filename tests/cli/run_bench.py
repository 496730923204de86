#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `packattn bench`: run_bench.py PATH/TO/packattn. They read figures, and judge none."""

import json
import xml.etree.ElementTree as ET

import command
from command import CommandTest


class Bench(CommandTest):
    def bench(self, *arguments, status=0):
        return self.run_command("bench", "--seconds", "0", *arguments, status=status)

    def rows(self, *arguments):
        return json.loads(self.bench("--json", *arguments))["rows"]

    def test_a_row_for_each_length_and_implementation(self):
        rows = self.rows("--lengths", "8,16", "--heads", "2", "--dim", "16", "--threads", "1")
        names = {row["implementation"] for row in rows}
        self.assertEqual(len(rows), 2 * len(names))
        self.assertNotIn("ref/attention", names)
        for row in rows:
            self.assertGreater(row["ms"], 0)
            flops = 4 * 16 * 2 * row["length"] ** 2
            self.assertAlmostEqual(row["gflops"] * row["ms"] * 1e6 / flops, 1, places=6)
            size = 4 * 4 * row["length"] * 2 * 16
            self.assertAlmostEqual(row["flops_per_byte"], flops / size, places=6)

    def test_causal_counts_visible_pairs_and_decode_one_query(self):
        reference = ("--implementation", "ref/attention", "--lengths", "6", "--heads", "1")
        for options, pairs in ((["--causal"], 21), (["--decode"], 6), ([], 36)):
            (row,) = self.rows(*reference, "--dim", "8", *options)
            self.assertAlmostEqual(row["gflops"] * row["ms"] * 1e6 / (4 * 8 * pairs), 1, places=6)

    def test_kda_counts_the_recurrence(self):
        for op in ("kda_recurrent", "kda_chunk"):
            (row,) = self.rows(
                *("--op", op, "--implementation", f"ref/{op}", "--dtype", "bf16"),
                *("--lengths", "20", "--sequences", "2", "--heads", "4", "--kv-heads", "2"),
                *("--dim", "8"),
            )
            flops = 7 * 40 * 4 * 8 * 8
            self.assertAlmostEqual(row["gflops"] * row["ms"] * 1e6 / flops, 1, places=6)

    def test_plots_are_documents_with_every_point(self):
        rows = self.rows("--lengths", "8,16,32", "--heads", "1", "--dim", "8", "--plots", "plots")
        for name in ("throughput.svg", "roofline.svg"):
            drawing = ET.parse(self.path / "plots" / name).getroot()
            circles = drawing.findall("{http://www.w3.org/2000/svg}circle")
            self.assertEqual(len(circles), len(rows))
            for circle in circles:
                self.assertTrue(0 < float(circle.get("cx")) < 860)
                self.assertTrue(0 < float(circle.get("cy")) < 460)

    def test_a_table(self):
        table = self.bench("--lengths", "8", "--heads", "4", "--kv-heads", "2", "--threads", "1")
        self.assertIn("4 heads (2 of k and v), D 128, fp32, 1 thread\n", table)
        self.assertIn("of read", table)
        state = ("--op", "kda_recurrent", "--lengths", "1", "--heads", "1", "--dim", "8")
        self.assertIn("of copy", self.bench(*state, "--decode"))

    def test_a_saved_result_is_shown_and_drawn_again(self):
        case = ("--lengths", "8,16", "--heads", "2", "--dim", "8", "--causal", "--dtype", "bf16")
        saved = self.bench("--json", *case, "--plots", "first")
        (self.path / "saved.json").write_text(saved)
        table = self.bench("--from", "saved.json", "--plots", "second")
        self.assertIn("2 heads (2 of k and v), D 8, bf16, causal", table)
        for row in json.loads(saved)["rows"]:
            self.assertIn(row["implementation"], table)
        for name in ("throughput.svg", "roofline.svg"):
            first, second = (self.path / folder / name for folder in ("first", "second"))
            self.assertEqual(first.read_text(), second.read_text())

    def test_refusals(self):
        for arguments, code in (
            (["--lengths", "0"], "PA7005"),
            (["--lengths", "8", "--op", "softmax"], "PA1104"),
            (["--lengths", "8", "--dtype", "int8"], "PA1104"),
            (["--lengths", "8", "--heads", "8", "--kv-heads", "3"], "PA1009"),
            (["--lengths", "8", "--implementation", "none"], "PA3001"),
        ):
            self.assertIn(f"[{code}]", self.bench(*arguments, status=2))
        (self.path / "file").write_text("{}")
        self.assertIn("[PA7005]", self.bench("--from", "file", status=2))
        self.assertIn("[PA7001]", self.bench("--from", "missing", status=1))
        self.assertIn("[PA7004]", self.bench("--plots", "file/plots", status=1))


if __name__ == "__main__":
    command.main()
