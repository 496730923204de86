#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tests of `packattn serve`: run_serve.py PATH/TO/packattn. Standard library only."""

import json
import os
import socket
import subprocess
import sys
import time
import unittest
import urllib.parse
import urllib.request
from pathlib import Path

from command import CommandTest

SECRET = "not for the web"


class Serve(CommandTest):
    def setUp(self):
        super().setUp()
        self.site = self.path / "site"
        for name, text in {
            "index.html": "<title>home</title>",
            "errors/PA2007.html": "<title>page</title>",
            "style.css": "body{}",
            "404.html": "<title>nothing here</title>",
            ".hidden": SECRET,
            "../secret.txt": SECRET,
        }.items():
            (self.site / name).parent.mkdir(parents=True, exist_ok=True)
            (self.site / name).write_text(text)
        os.symlink(self.path / "secret.txt", self.site / "link.txt")
        self.server = self.start("--site", "site")

    def start(self, *arguments, cwd=None):
        server = subprocess.Popen(
            [self.program, "serve", "--port", "0", *arguments],
            cwd=cwd or self.path,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.addCleanup(server.stdout.close)
        self.addCleanup(server.wait)
        self.addCleanup(server.terminate)
        self.address = server.stdout.readline().split()[0]
        self.port = int(self.address.rsplit(":", 1)[1].strip("/"))
        return server

    def get(self, path, method="GET", timeout=10):
        request = urllib.request.Request(self.address + path.lstrip("/"), method=method)
        try:
            with urllib.request.urlopen(request, timeout=timeout) as answer:
                return answer.status, answer.headers, answer.read().decode()
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, refused.headers, refused.read().decode()

    def raw(self, data, wait=5.0):
        """What comes back for bytes that no HTTP library would send."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=wait) as connection:
            try:
                connection.sendall(data)
                connection.shutdown(socket.SHUT_WR)
                return connection.recv(65536)
            except OSError:
                return b""  # cut off

    def still_answers(self):
        started = time.monotonic()
        status, _, text = self.get("/api/errors/PA2007")
        self.assertEqual((status, json.loads(text)["record"]["errorCode"]), (200, "PA2007"))
        self.assertLess(time.monotonic() - started, 3)

    def memory(self):
        status = Path(f"/proc/{self.server.pid}/status").read_text()
        (line,) = (line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1])

    def test_files_of_the_site(self):
        for path, kind, text in (
            ("/", "text/html", "home"),
            ("/index.html", "text/html", "home"),
            ("/errors/PA2007.html?q=1", "text/html", "page"),
            ("/style.css", "text/css", "body{}"),
        ):
            status, headers, body = self.get(path)
            self.assertEqual(status, 200, path)
            self.assertIn(kind, headers["Content-Type"])
            self.assertEqual(headers["X-Content-Type-Options"], "nosniff")
            self.assertIn(text, body)
        status, _, body = self.get("/absent.html")
        self.assertEqual((status, body), (404, "<title>nothing here</title>"))
        self.assertEqual(self.get("/errors")[0], 404)  # a folder without an index

    def test_the_interface(self):
        listed = json.loads(self.get("/api/errors")[2])
        self.assertGreater(len(listed), 200)
        codes = {row["errorCode"] for row in listed}
        self.assertLessEqual({"PA2007", None}, codes)
        filtered = json.loads(self.get("/api/errors?tag=dtype&repo=sglang&severity=error")[2])
        self.assertTrue(filtered and all("dtype" in row["tags"] for row in filtered))
        self.assertLess(len(filtered), len(listed))
        documents = json.loads(self.get("/api/errors.json")[2])
        self.assertEqual([d["record"]["id"] for d in documents], [row["id"] for row in listed])
        one = json.loads(self.get("/api/errors/" + listed[-1]["id"])[2])
        self.assertEqual(one, documents[-1])
        self.assertEqual(self.get("/api/errors/PA0000")[0], 404)

    def test_explain(self):
        text = "[rank0]: ValueError: cu_seqlens_q must be non-decreasing\nünï 100%"
        status, headers, body = self.get("/api/explain?q=" + urllib.parse.quote(text))
        found = json.loads(body)
        self.assertEqual((status, found["query"]), (200, text))
        self.assertIn("application/json", headers["Content-Type"])
        best = found["matches"][0]
        self.assertEqual(best["captures"], {"name": "cu_seqlens_q"})
        self.assertEqual(best["document"]["record"]["repo"], "sgl-project/sglang")
        self.assertEqual(json.loads(self.get("/api/explain?q=zebras")[2])["matches"], [])
        for query in ("", "?q=", "?x=1"):
            status, _, body = self.get("/api/explain" + query)
            self.assertEqual(status, 400, query)
            self.assertIn("error", json.loads(body))

    def test_nothing_outside_the_site(self):
        for path in (
            "/../secret.txt",
            "/%2e%2e/secret.txt",
            "/..%2fsecret.txt",
            "/errors/../../secret.txt",
            "/errors/%2e%2e/%2e%2e/secret.txt",
            "/..\\secret.txt",
            "/%5c..%5csecret.txt",
            "//" + str(self.path / "secret.txt"),
            str(self.path / "secret.txt"),
            "/link.txt",
            "/.hidden",
            "/errors/..;/secret.txt",
            "/" + "../" * 40 + "etc/passwd",
        ):
            answer = self.raw(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            self.assertTrue(answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), (path, answer))
            self.assertNotIn(SECRET.encode(), answer)
            self.assertNotIn(b"root:", answer)
        self.still_answers()

    def test_only_get_and_head(self):
        status, headers, body = self.get("/", "HEAD")
        self.assertEqual((status, body), (200, ""))
        self.assertEqual(headers["Content-Length"], str(len("<title>home</title>")))
        for method in ("POST", "PUT", "DELETE", "TRACE", "OPTIONS", "BREW"):
            status, headers, _ = self.get("/api/errors", method)
            self.assertEqual((status, headers["Allow"]), (405, "GET, HEAD"), method)
        body = b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000000\r\n\r\n" + b"x" * 100000
        self.raw(body)
        self.still_answers()

    def test_malformed_requests(self):
        for data in (
            b"",
            b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET  HTTP/1.1\r\n\r\n",
            b"GET / HTTP/1.1\r\nno colon\r\n\r\n",
            b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
            bytes(range(256)) * 20,
            b"GET /api/explain?q=%zz%f%00%ff HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /api/explain?" + b"&" * 5000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /%00/../secret.txt HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /%" + b"%25" * 50 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
        ):
            self.raw(data)
            self.assertIsNone(self.server.poll(), data[:40])
        self.still_answers()

    def test_long_queries(self):
        text = "cu_seqlens_q must be non-decreasing " + "x" * 8000
        status, _, body = self.get("/api/explain?q=" + urllib.parse.quote(text))
        self.assertEqual(status, 200)
        self.assertEqual(json.loads(body)["matches"][0]["captures"], {"name": "cu_seqlens_q"})
        answer = self.raw(b"GET /api/explain?q=" + b"x" * 200_000 + b" HTTP/1.1\r\nHost: a\r\n\r\n")
        self.assertTrue(not answer or answer.split()[1] in (b"414", b"431", b"400"), answer[:80])
        headers = b"".join(b"X-%d: y\r\n" % i for i in range(50_000))
        answer = self.raw(b"GET / HTTP/1.1\r\n" + headers + b"\r\n")
        self.assertTrue(not answer or answer.split()[1] in (b"413", b"431", b"400"), answer[:80])
        self.still_answers()

    def test_a_line_without_end_costs_no_memory(self):
        before = self.memory()
        for start in (b"", b"GET / HTTP/1.1\r\nX: "):
            with socket.create_connection(("127.0.0.1", self.port), timeout=5) as connection:
                try:
                    connection.sendall(start)
                    for _ in range(40):
                        connection.sendall(b"a" * 1_000_000)
                except (ConnectionError, TimeoutError):
                    pass  # cut off, as it should be
        self.assertLess(self.memory() - before, 8_000)
        self.still_answers()

    def test_slow_clients_do_not_keep_others_waiting(self):
        slow = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(120)]
        try:
            for turn in b"GET /":  # a byte at a time, and none ever sends a whole line
                for connection in slow:
                    connection.sendall(bytes([turn]))
                self.still_answers()
            # Answers that nobody reads.
            for connection in slow[:20]:
                connection.sendall(b"api/errors.json HTTP/1.1\r\nHost: a\r\n\r\n")
            self.still_answers()
        finally:
            for connection in slow:
                connection.close()
        self.still_answers()

    def test_more_clients_than_places(self):
        idle = [socket.create_connection(("127.0.0.1", self.port)) for _ in range(400)]
        try:
            for connection in idle:
                connection.sendall(b"GET /")
            # A place is free as soon as the first of them has been silent for too long.
            status, _, _ = self.get("/api/errors/PA2007", timeout=25)
            self.assertEqual(status, 200)
        finally:
            for connection in idle:
                connection.close()
        self.still_answers()

    def test_no_header_of_a_clients_making(self):
        for path in ("/%0d%0aSet-Cookie:%20a=b", "/errors%0d%0aX-Made:%20up/", "/errors%0aX:1"):
            answer = self.raw(f"GET {path} HTTP/1.1\r\nHost: a\r\n\r\n".encode())
            self.assertTrue(answer.startswith((b"HTTP/1.1 404", b"HTTP/1.1 400")), (path, answer))
            for name in (b"Set-Cookie", b"X-Made", b"Location"):
                self.assertNotIn(name, answer.split(b"\r\n\r\n")[0])

    def test_an_idle_connection_is_closed(self):
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(b"GET / HT")
            self.assertEqual(connection.recv(1000).split()[:2][-1:] or [b"408"], [b"408"])

    def test_only_this_machine_is_answered(self):
        addresses = {info[4][0] for info in socket.getaddrinfo(socket.gethostname(), None)}
        for address in addresses - {"127.0.0.1", "::1", "127.0.1.1"}:
            with self.assertRaises(OSError):
                socket.create_connection((address, self.port), timeout=2).close()

    def test_it_ends_when_told_to(self):
        self.server.terminate()
        self.assertEqual(self.server.wait(timeout=10), 0)

    def test_the_site_of_the_folder_is_the_default(self):
        self.start()
        self.assertIn("home", self.get("/")[2])

    def test_without_a_site(self):
        self.start(cwd=self.site)
        self.assertIn("/api/explain?q=", self.get("/")[2])
        self.assertEqual(self.get("/index.html")[0], 404)
        self.still_answers()

    def test_what_cannot_be_served(self):
        self.assertIn("PA7001", self.run_command("serve", "--site", "absent", status=1))
        taken = self.run_command("serve", "--port", self.port, "--site", "site", status=1)
        self.assertIn("PA7007", taken)
        self.assertIn("PA7005", self.run_command("serve", "--port", "70000", status=2))


if __name__ == "__main__":
    CommandTest.program = Path(sys.argv[1]).resolve()
    unittest.main(argv=[sys.argv[0]])
