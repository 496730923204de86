# SPDX-License-Identifier: Apache-2.0
"""A test that runs the packattn command in an empty folder, and the calls that it runs on."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from tensors import floats, integers, save


class CommandTest(unittest.TestCase):
    program = Path("packattn")

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.path = Path(self.folder.name)

    def run_command(self, *arguments, status=0, stdin=""):
        done = subprocess.run(
            [self.program, *map(str, arguments)],
            capture_output=True,
            text=True,
            input=stdin,
            cwd=self.path,
            timeout=120,
        )
        self.assertEqual(done.returncode, status, done.stdout + done.stderr)
        return done.stdout if status == 0 else done.stdout + done.stderr

    def save_attention(self, name="in.safetensors", metadata=None, **changes):
        tensors = {
            "q": floats(5, 2, 8),
            "k": floats(5, 2, 8, step=0.11),
            "v": floats(5, 2, 8, step=0.73),
            "cu_seqlens_q": integers(0, 2, 5),
            **changes,
        }
        tensors = {key: tensor for key, tensor in tensors.items() if tensor}
        save(self.path / name, tensors, metadata)
        return name

    def save_kda(self, name="kda.safetensors", metadata=None, **changes):
        tensors = {
            "q": floats(1, 5, 1, 8),
            "k": floats(1, 5, 1, 8, step=0.11),
            "v": floats(1, 5, 2, 8, step=0.73),
            "g": ("F32", [1, 5, 2, 8], [-0.1] * 80),
            "beta": ("F32", [1, 5, 2], [0.5] * 10),
            "cu_seqlens": integers(0, 2, 5),
            **changes,
        }
        save(self.path / name, {key: t for key, t in tensors.items() if t}, metadata)
        return name

    def write_json(self, content, name="call.json"):
        text = content if isinstance(content, str) else json.dumps(content)
        (self.path / name).write_text(text, encoding="utf-8")
        return name


def main():
    """Runs the tests of the calling file on the program that its first argument names."""
    os.environ.pop("COLUMNS", None)
    CommandTest.program = Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0]])
