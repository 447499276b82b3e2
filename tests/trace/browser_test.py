"""The page of llm-trace --html in headless Chromium: 8 ranks and 50 steps are drawn, nothing is asked of a network, nothing is
complained about. Skipped (exit code 77) where there is no Chromium.
usage: browser_test.py MPIRUN DELAYED_RANK LLM_TRACE"""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import zlib

MPIRUN, DELAYED_RANK, LLM_TRACE = sys.argv[1:4]
BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
RANKS, STEPS = 8, 50
WIDTH, HEIGHT = 1000, 800


def pixels(png):
    """The rows of an 8-bit RGB or RGBA image without interlace, by PNG's description; and the bytes of a pixel."""
    assert png[:8] == b"\x89PNG\r\n\x1a\n"
    at, packed, shape = 8, b"", None
    while at < len(png):
        (n,), kind = struct.unpack(">I", png[at:at + 4]), png[at + 4:at + 8]
        body = png[at + 8:at + 8 + n]
        assert zlib.crc32(kind + body) == struct.unpack(">I", png[at + 8 + n:at + 12 + n])[0]
        if kind == b"IHDR":
            shape = struct.unpack(">IIBBBBB", body)
        if kind == b"IDAT":
            packed += body
        at += 12 + n
    width, height, depth, colour, _, _, interlace = shape
    assert depth == 8 and colour in (2, 6) and interlace == 0
    each = 3 if colour == 2 else 4
    data, stride, before, rows = zlib.decompress(packed), width * each, bytes(width * each), []
    for y in range(height):
        kind, row = data[y * (stride + 1)], bytearray(data[y * (stride + 1) + 1:(y + 1) * (stride + 1)])
        for x in range(stride):
            left = row[x - each] if x >= each else 0
            up, corner = before[x], before[x - each] if x >= each else 0
            if kind == 1:
                row[x] = row[x] + left & 255
            elif kind == 2:
                row[x] = row[x] + up & 255
            elif kind == 3:
                row[x] = row[x] + (left + up) // 2 & 255
            elif kind == 4:
                a, b, c = abs(up - corner), abs(left - corner), abs(left + up - 2 * corner)
                row[x] = row[x] + (left if a <= b and a <= c else up if b <= c else corner) & 255
        before = bytes(row)
        rows.append(before)
    assert (width, height) == (WIDTH, HEIGHT)
    return rows, each


class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="llm-trace-page-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, ignore_errors=True)
        launch = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "-n", str(RANKS)]
        subprocess.run([*launch, DELAYED_RANK, cls.folder, "pp", "0", "0", str(STEPS)], check=True, timeout=120)
        losses = [json.dumps({"kind": "step", "step": step, "loss": 4 / step}) for step in range(1, STEPS + 1)]
        (cls.folder / "metrics.jsonl").write_text("\n".join(losses) + "\n")
        cls.page = cls.folder / "page.html"
        subprocess.run([LLM_TRACE, cls.folder, "--html", cls.page, "--run-dir", cls.folder], check=True, timeout=120,
                       stdout=subprocess.DEVNULL)

    def browse(self, page, *options, hash=""):
        """What the browser prints, and its log with the console's messages."""
        profile = tempfile.mkdtemp(dir=self.folder)
        command = [BROWSER, "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
                   "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--hide-scrollbars",
                   "--host-resolver-rules=MAP * ~NOTFOUND", "--enable-logging=stderr", f"--user-data-dir={profile}",
                   f"--window-size={WIDTH},{HEIGHT}", *options, f"file://{page}#{hash}"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, cwd=self.folder,
                              env=os.environ | {"HOME": profile})
        return done.stdout, done.stderr

    def requests_of(self, log):
        """Addresses that the page asked a network for; what the browser itself asks for has no origin."""
        log = json.loads(log.read_text())
        start = log["constants"]["logEventTypes"]["URL_REQUEST_START_JOB"]
        found = [event["params"] for event in log["events"] if event["type"] == start and "url" in event.get("params", {})]
        return [request["url"] for request in found
                if re.match("(https?|wss?|ftp):", request["url"]) and request.get("initiator") != "not an origin"]

    def test_it_draws_all_frames_without_a_request_or_a_complaint(self):
        log = self.folder / "net.json"
        dom, errors = self.browse(self.page, "--dump-dom", f"--log-net-log={log}", hash="measure=1")
        root = re.search("<html[^>]*>", dom)[0]
        figures = dict(re.findall(r'data-([\w-]+)="([^"]*)"', root))
        print("8 ranks, 50 steps:", figures, flush=True)
        self.assertEqual(figures["frames"], "60")
        self.assertGreater(int(figures["drawn"]), 10000)
        self.assertEqual(self.requests_of(log), [])
        self.assertEqual([line for line in errors.splitlines() if "CONSOLE" in line], [])
        self.assertEqual(len(re.findall("<tr", re.search("<tbody>.*</tbody>", dom, re.S)[0])), STEPS)
        self.assertIn("rank 7", re.search('<div id="ranks".*?<ul', dom, re.S)[0])
        self.assertRegex(dom, r'id="loss-hint">Step 50: 0\.08')

    def test_a_request_and_a_complaint_would_be_seen(self):
        page = self.folder / "bad.html"
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", self.page.read_text())
        page.write_text(text.replace("<header>", '<img src="http://example.invalid/x.png"><script>console.error("oh")</script><header>'))
        log = self.folder / "bad.json"
        _, errors = self.browse(page, "--dump-dom", f"--log-net-log={log}")
        self.assertEqual(self.requests_of(log), ["http://example.invalid/x.png"])
        self.assertTrue(any("CONSOLE" in line and "oh" in line for line in errors.splitlines()))

    def test_a_screenshot_shows_ranks_in_colours_in_both_themes(self):
        darkness = {}
        for theme in ("light", "dark"):
            picture = self.folder / f"{theme}.png"
            self.browse(self.page, f"--screenshot={picture}", hash=f"theme={theme}")
            rows, each = pixels(picture.read_bytes())
            colours = {}
            for row in rows[::2]:
                for x in range(0, len(row), 2 * each):
                    colour = row[x:x + 3]
                    colours[colour] = colours.get(colour, 0) + 1
            n = sum(colours.values())
            self.assertGreater(len(colours), 100, theme)
            self.assertLess(max(colours.values()), 0.9 * n, theme)
            for wanted in ((0x3A, 0x7B, 0xEA), (0xEF, 0x8A, 0x34)) if theme == "light" else ((0x5B, 0x9B, 0xFF), (0xFF, 0x9F, 0x4D)):
                self.assertGreater(colours.get(bytes(wanted), 0), 20, f"{theme}: forwards and backwards")
            darkness[theme] = sum(sum(colour) * count for colour, count in colours.items()) / n / 3
        self.assertGreater(darkness["light"], 180)
        self.assertLess(darkness["dark"], 90)


if BROWSER is None:
    print("skipped: no Chromium is here; apt-get install chromium")
    sys.exit(77)
unittest.main(argv=sys.argv[:1])
