#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of the packattn command: run_cli.py PATH/TO/packattn. Needs the standard library only."""

import json
import os
import subprocess
from pathlib import Path

import command
from command import CommandTest
from tensors import floats, integers, load

ROOT = Path(__file__).resolve().parent.parent.parent


class Run(CommandTest):
    def test_one_key_gives_its_value(self):
        name = self.save_attention(
            q=floats(1, 2, 8), k=floats(1, 2, 8), v=floats(1, 2, 8), cu_seqlens_q=integers(0, 1)
        )
        self.run_command("run", name, "-o", "out.safetensors")
        tensors, metadata = load(self.path / "out.safetensors")
        shape, out = tensors["out"]
        self.assertEqual(shape, [1, 2, 8])
        for found, expected in zip(out, floats(1, 2, 8)[2]):
            self.assertAlmostEqual(found, expected, places=6)
        self.assertEqual(tensors["lse"][0], [2, 1])
        self.assertEqual(metadata["packattn.op"], "attention")

    def test_implementations_agree_and_can_be_named(self):
        name = self.save_attention()
        rows = json.loads(self.run_command("why", name, "--json"))
        outs = {}
        for row in rows:
            if "code" in row:
                continue
            self.run_command("run", name, "-o", "o", "--implementation", row["implementation"])
            tensors, metadata = load(self.path / "o")
            self.assertEqual(metadata["packattn.implementation"], row["implementation"])
            outs[row["implementation"]] = tensors["out"][1]
        self.assertIn("ref/attention", outs)
        for out in outs.values():
            for found, expected in zip(out, outs["ref/attention"]):
                self.assertAlmostEqual(found, expected, places=5)

    def test_flags_win_over_metadata(self):
        causal = self.save_attention("causal", {"packattn.causal": "true"})
        plain = self.save_attention("plain", {"about": "causal"})
        for arguments in ([causal], [plain, "--causal"], [causal, "--no-causal"], [plain]):
            self.run_command("run", *arguments, "-o", "_".join(arguments) + ".out")
        read = {path.stem: path.read_bytes() for path in self.path.glob("*.out")}
        self.assertEqual(read["causal"], read["plain_--causal"])
        self.assertEqual(read["plain"], read["causal_--no-causal"])
        self.assertNotEqual(read["plain"], read["causal"])

    def test_json_result(self):
        result = json.loads(self.run_command("run", self.save_attention(), "--json", "--no-lse"))
        self.assertEqual(result["op"], "attention")
        self.assertEqual(result["outputs"], {"out": {"dtype": "fp32", "shape": [5, 2, 8]}})
        self.assertIsNone(result["written"])

    def test_quiet_says_nothing(self):
        self.assertEqual(self.run_command("run", self.save_attention(), "--quiet"), "")

    def test_kda_recurrent_and_chunk_agree(self):
        name = self.save_kda()
        outs = {}
        for op in ("kda_recurrent", "kda_chunk"):
            flags = ["--op", op, "--final-state", "--state-layout", "k_first", "-o", op]
            self.run_command("run", name, *flags)
            outs[op], _ = load(self.path / op)
        self.assertEqual(outs["kda_chunk"]["final_state"][0], [2, 2, 8, 8])
        for output in ("out", "final_state"):
            for a, b in zip(outs["kda_recurrent"][output][1], outs["kda_chunk"][output][1]):
                self.assertAlmostEqual(a, b, places=5)

    def test_kda_is_recognised_and_updates_a_state(self):
        zeros = ("F32", [2, 2, 8, 8], [0.0] * 256)
        name = self.save_kda(metadata={"packattn.state_layout": "v_first"}, state=zeros)
        before = (self.path / name).read_bytes()
        self.assertIn("kda_recurrent", self.run_command("run", name, "-o", "out"))
        tensors, _ = load(self.path / "out")
        self.assertTrue(any(tensors["state"][1]))
        self.assertEqual((self.path / name).read_bytes(), before)

    def test_a_device_gives_the_results_of_the_host(self):
        calls = {"attention": self.save_attention(), "kda_recurrent": self.save_kda()}
        calls["kda_chunk"] = calls["kda_recurrent"]
        for op, name in calls.items():
            command = ["run", name, "--op", op, "-o"]
            there = subprocess.run(
                [self.program, *command, "there", "--device", "cuda"],
                capture_output=True,
                text=True,
                cwd=self.path,
                timeout=120,
            )
            if there.returncode != 0:
                self.assertRegex(there.stderr, "PA400[12]")
                self.skipTest("no CUDA device here")
            self.assertIn("simt/", there.stdout)
            self.run_command(*command, "here")
            for output, (_, values) in load(self.path / "here")[0].items():
                for a, b in zip(load(self.path / "there")[0][output][1], values):
                    self.assertAlmostEqual(a, b, places=5)

    def test_input_and_output_may_be_one_file(self):
        name = self.save_attention()
        self.run_command("run", name, "-o", name)
        self.assertIn("out", load(self.path / name)[0])

    def test_the_real_batch(self):
        batch = ROOT / "examples/minilm/minilm_layer3.safetensors"
        self.run_command("run", batch, "-o", "out")
        out, expected = load(self.path / "out")[0]["out"][1], load(batch)[0]["out_torch"][1]
        self.assertLess(max(abs(a - b) for a, b in zip(out, expected)), 1e-5)


class Refused(CommandTest):
    def test_all_faults_at_once_and_nothing_written(self):
        name = self.save_attention(cu_seqlens_q=integers(0, 3, 2, 5))
        text = self.run_command("run", name, "--softcap", "-1", "-o", "out", status=2)
        for part in ("error[PA2007]", "index 2", "error[PA1102]", "2 faults in this call"):
            self.assertIn(part, text)
        self.assertEqual([path.name for path in self.path.iterdir()], [name])

    def test_faults_as_json(self):
        name = self.save_attention(cu_seqlens_q=integers(0, 9))
        for verb in ("run", "check"):
            faults = json.loads(self.run_command(verb, name, "--json", status=2))["faults"]
            self.assertEqual([fault["code"] for fault in faults], ["PA2006"] * 2)

    def test_files_that_fail(self):
        name = self.save_attention()
        self.assertIn("PA7001", self.run_command("run", "absent", status=1))
        self.assertIn("PA7004", self.run_command("run", name, "-o", "absent/out", status=1))
        (self.path / "bad").write_bytes(b"\xff" * 64)
        self.assertIn("PA7002", self.run_command("run", "bad", status=1))
        text = self.run_command("run", self.save_attention("no_kv", k=None, v=None), status=1)
        self.assertIn("no tensor k", text)
        self.assertIn("no tensor v", text)

    def test_only_files_are_replaced_by_the_output(self):
        name = self.save_attention()
        os.mkfifo(self.path / "pipe")
        (self.path / "folder").mkdir()
        for target, word in (("pipe", "not a regular file"), ("folder", "directory")):
            text = self.run_command("run", name, "-o", target, status=1)
            self.assertIn("PA7004", text)
            self.assertIn(word, text)
        self.assertTrue((self.path / "pipe").is_fifo())
        self.assertIn("empty", self.run_command("run", name, "-o", "", status=2))

    def test_a_link_stays_and_its_file_is_written(self):
        name = self.save_attention()
        (self.path / "folder").mkdir()
        (self.path / "folder" / "old").write_text("old")
        links = {"to_old": "folder/old", "to_new": "folder/new", "twice": "to_old"}
        for link, target in links.items():
            (self.path / link).symlink_to(target)
            self.run_command("run", name, "-o", link)
            self.assertTrue((self.path / link).is_symlink())
            self.assertGreater((self.path / target).stat().st_size, 100)
        self.assertEqual({p.name for p in (self.path / "folder").iterdir()}, {"old", "new"})
        (self.path / "round").symlink_to("round")
        self.assertIn("PA7004", self.run_command("run", name, "-o", "round", status=1))

    def test_a_result_that_cannot_be_printed_is_a_failure(self):
        for arguments in (["explain", "PA2007"], ["errors"], ["errors", "--json"], ["--help"]):
            with open("/dev/full", "w") as full:
                process = subprocess.run(
                    [self.program, *arguments], stdout=full, stderr=subprocess.PIPE, text=True
                )
            self.assertEqual(process.returncode, 1, arguments)
            self.assertIn("error[PA7004]: standard output", process.stderr)

    def test_names_in_a_file_do_not_reach_the_terminal_raw(self):
        hostile = "\x1b[31m\n" + "x" * 5000
        name = self.save_attention(**{hostile: ("F32", [1], [0.0]), "q": None})
        text = self.run_command("check", name, status=1)
        self.assertNotIn("\x1b", text)
        self.assertIn("\\x1b[31m\\n", text)
        self.assertLess(len(text), 3000)

    def test_bad_usage(self):
        name = self.save_attention()
        for arguments in ([], ["walk"], ["run"], ["run", name, "--causl"], ["run", name, "--op"]):
            self.assertIn("PA7005", self.run_command(*arguments, status=2))

    def test_bad_options(self):
        name = self.save_attention(metadata={"packattn.causl": "true", "packattn.causal": "yes"})
        text = self.run_command("run", name, "--align", "middle", "--window-left", "1.5", status=2)
        self.assertEqual(text.count("error[PA1104]"), 3)
        self.assertEqual(text.count("error[PA1105]"), 1)
        self.assertIn("bottom_right, top_left", text)
        text = self.run_command("check", name, "--op", "kda", status=2)
        self.assertIn("attention, kda_recurrent, kda_chunk", text)
        self.assertIn("PA1105", self.run_command("check", self.save_kda(), "--causal", status=2))

    def test_a_device_that_is_not_there(self):
        name = self.save_attention()
        text = self.run_command("run", name, "--device", "cuda:63", status=1)
        self.assertRegex(text, "PA400[12]")
        for device in ("gpu", "cuda:", "cuda:-1", "cuda:1x"):
            text = self.run_command("run", name, "--device", device, status=2)
            self.assertIn("cpu, cuda or cuda:<index>", text)

    def test_an_unknown_implementation(self):
        name = self.save_attention()
        text = self.run_command("run", name, "--implementation", "fast", status=2)
        self.assertIn("PA3001", text)
        self.assertIn("ref/attention", text)


TENSORS = {
    "q": {"dtype": "torch.bfloat16", "shape": [20, 4, 64], "device": "cpu"},
    "k": {"dtype": "bf16", "shape": [20, 2, 64]},
    "v": {"dtype": "bf16", "shape": [20, 2, 64]},
    "cu_seqlens_q": [0, 12, 20],
}


class Check(CommandTest):
    def check(self, status=0, options=None, **changes):
        tensors = {**TENSORS, **changes}
        name = self.write_json({"tensors": tensors, "options": options or {}})
        return self.run_command("check", name, status=status)

    def test_a_good_file_and_a_good_description(self):
        self.assertIn("no faults", self.run_command("check", self.save_attention()))
        self.assertIn("no faults", self.check(options={"causal": True, "window_left": 3}))

    def test_shapes_beyond_any_memory_are_checked(self):
        huge = {"dtype": "bf16", "shape": [2**31, 128, 128]}
        self.assertIn("no faults", self.check(q=huge, k=huge, v=huge, cu_seqlens_q=[0, 2**31]))

    def test_faults_of_a_description(self):
        text = self.check(2, q={"dtype": "fp32", "shape": [19, 4, 64]}, cu_seqlens_q=[1, 20])
        for code in ("PA1004", "PA2005"):
            self.assertIn(code, text)

    def test_outputs_that_nobody_gave_have_no_faults(self):
        wrong = {"dtype": "bf16", "shape": [20, 256]}
        text = self.check(2, q=wrong)
        self.assertIn("q has rank 2", text)
        self.assertNotIn("error[PA1002]: out", text)

    def test_a_paged_description(self):
        cache = {"dtype": "bf16", "shape": [3, 16, 2, 64]}
        paged = {
            "k": cache,
            "v": cache,
            "seqlens_k": {"dtype": "int32", "shape": [2], "values": [5, 16]},
            "block_table": {"dtype": "int32", "shape": [2, 1], "values": [0, 2]},
        }
        self.assertIn("no faults", self.check(**paged))
        paged["block_table"]["values"][1] = 3
        self.assertIn("PA2021", self.check(2, **paged))

    def test_descriptions_without_the_form(self):
        cases = [
            "",
            "[]",
            '{"tensors": 1}',
            '{"shape": []}',
            {"tensors": {"q": 1}},
            {"tensors": {"q": {"dtype": "fp33", "shape": [1]}}},
            {"tensors": {"q": {"dtype": "fp32"}}},
            {"tensors": {"q": {"dtype": "fp32", "shape": [1.5]}}},
            {"tensors": {"q": {"dtype": "fp32", "shape": [1], "strides": [1, 1]}}},
            {"tensors": {"q": {"dtype": "fp32", "shape": [1], "device": "cuda:x"}}},
            {"tensors": {"q": {"dtype": "fp32", "shape": [1], "size": 4}}},
            {"tensors": {"lengths_q": {"dtype": "int32", "shape": [2]}}},
            {"tensors": {"lengths_q": {"dtype": "int32", "shape": [2**40], "values": []}}},
        ]
        for case in cases:
            self.assertIn("PA7005", self.run_command("check", self.write_json(case), status=2))

    def test_the_description_in_the_documentation(self):
        page = (ROOT / "docs/command-line.md").read_text(encoding="utf-8")
        name = self.write_json(page.partition("```json\n")[2].partition("```")[0])
        self.assertIn("no faults", self.run_command("check", name))

    def test_run_needs_data(self):
        name = self.write_json({"tensors": TENSORS})
        self.assertIn("no data to run on", self.run_command("run", name, status=2))

    def test_why_names_reasons(self):
        text = self.run_command("why", self.write_json({"tensors": TENSORS}))
        self.assertIn("the one that runs", text)
        self.assertIn("ref/attention", text)


class Reference(CommandTest):
    def test_explain_by_code_message_and_standard_input(self):
        by_code = self.run_command("explain", "PA2007")
        self.assertTrue(by_code.startswith("# PA2007"), by_code)
        for arguments, stdin in (
            (["cu_seqlens_q", "decreases", "at", "index", "3:", "12", "then", "5"], ""),
            (
                [],
                "Traceback:\n  File x\nValueError: cu_seqlens_q decreases at index 3: 12 then 5\n",
            ),
        ):
            text = self.run_command("explain", *arguments, stdin=stdin)
            self.assertTrue(text.startswith("# PA2007"), text)
            self.assertIn("position = index 3", text)

    def test_explain_as_json(self):
        matches = json.loads(self.run_command("explain", "--json", "PA2007"))
        self.assertEqual(matches[0]["score"], 1)
        self.assertEqual(matches[0]["document"]["record"]["errorCode"], "PA2007")

    def test_explain_what_nobody_knows(self):
        self.assertIn("PA7006", self.run_command("explain", "zebras graze quietly", status=2))
        self.assertIn("PA7006", self.run_command("explain", status=2))

    def test_errors_filtered(self):
        documents = json.loads(self.run_command("errors", "--json"))
        own = [d for d in documents if d["record"]["repo"] == "packattn"]
        self.assertGreater(len(own), 80)
        listed = self.run_command("errors", "--repo", "packattn").splitlines()
        self.assertEqual(len(listed), len(own))
        for document in json.loads(self.run_command("errors", "--json", "--tag", "dtype")):
            self.assertIn("dtype", document["record"]["tags"])
        self.assertIn("sgl-project", self.run_command("errors", "--repo", "sglang"))
        self.run_command("errors", "--severity", "bad", status=2)

    def test_info(self):
        about = json.loads(self.run_command("info", "--json"))
        names = [row["name"] for row in about["implementations"]["attention"]]
        self.assertEqual(names[-1], "ref/attention")
        self.assertIn(about["version"], self.run_command("info"))
        self.assertIn(about["version"], self.run_command("--version"))
        tensors = json.loads(self.run_command("info", "--json", self.save_attention()))["tensors"]
        self.assertEqual(tensors["q"], {"dtype": "fp32", "shape": [5, 2, 8]})

    def test_help_for_every_command(self):
        for name in ("run", "check", "why", "bench", "explain", "errors", "info"):
            self.assertIn(name, self.run_command("--help"))
            self.assertIn("--json", self.run_command(name, "--help"))


if __name__ == "__main__":
    command.main()
