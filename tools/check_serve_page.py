#!/usr/bin/env python3
"""Drive the page of `dtensor serve` in headless Chromium, and say what does not hold.

On the small checkpoint of the examples: a message is sent and its answer streams in, an answer is
stopped, an error is shown, and nothing is asked of anybody but the server.

Run, from the repository root, after `make build`:

    python3 tools/check_serve_page.py [build/release/bin/dtensor]

Needs chromium (CHROMIUM names another program), and of Python its standard library.
"""

import base64
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request

KEY = "a key that only this script knows"
TEMPLATE = (
    "{% for m in messages %}{{ m.role | upper }}:\n{{ m.content }}\n\n{% endfor %}"
    "{% if add_generation_prompt %}ROMEO:{% endif %}")


class Server:
    def __init__(self, binary, folder):
        template = os.path.join(folder, "chat.jinja")
        with open(template, "w", encoding="utf-8") as f:
            f.write(TEMPLATE)
        self.log = open(os.path.join(folder, "log"), "w+", encoding="utf-8")
        self.process = subprocess.Popen(
            [binary, "serve", "--model", "small=examples/checkpoint", "--port", "0",
             "--chat-template", template],
            stdout=subprocess.PIPE, stderr=self.log, text=True,
            env={**os.environ, "DTENSOR_API_KEY": KEY})
        line = self.process.stdout.readline()
        assert line.startswith("listening at "), line
        self.url = line.split()[-1]

    def lines(self):
        """The access log."""
        self.log.flush()
        with open(self.log.name, encoding="utf-8") as f:
            return [json.loads(line) for line in f if line.startswith("{")]

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=60)


class Socket:
    """A client of RFC 6455, as much as the browser's own protocol needs."""

    def __init__(self, url):
        host, path = url[len("ws://"):].split("/", 1)
        name, port = host.split(":")
        self.s = socket.create_connection((name, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self.s.sendall((f"GET /{path} HTTP/1.1\r\nHost: {host}\r\nUpgrade: websocket\r\n"
                        f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
                        "Sec-WebSocket-Version: 13\r\n\r\n").encode())
        self.left = b""
        while b"\r\n\r\n" not in self.left:
            self.left += self.s.recv(65536)
        head, self.left = self.left.split(b"\r\n\r\n", 1)
        assert b" 101 " in head.split(b"\r\n")[0], head

    def send(self, text):
        data, mask = text.encode(), os.urandom(4)
        n = len(data)
        size = bytes([0x80 | n]) if n < 126 else (
            b"\xfe" + struct.pack(">H", n) if n < 1 << 16 else b"\xff" + struct.pack(">Q", n))
        self.s.sendall(b"\x81" + size + mask + bytes(b ^ mask[i % 4] for i, b in enumerate(data)))

    def take(self, n):
        while len(self.left) < n:
            more = self.s.recv(65536)
            assert more, "the browser has closed its end"
            self.left += more
        out, self.left = self.left[:n], self.left[n:]
        return out

    def receive(self):
        text = b""
        while True:
            first, size = self.take(2)
            n = size & 127
            if n == 126:
                n = struct.unpack(">H", self.take(2))[0]
            elif n == 127:
                n = struct.unpack(">Q", self.take(8))[0]
            data = self.take(n)
            assert first & 15 in (0, 1), "a frame that is no text"
            text += data
            if first & 128:
                return text.decode()


class Browser:
    def __init__(self, folder):
        profile = os.path.join(folder, "profile")
        self.process = subprocess.Popen(
            [os.environ.get("CHROMIUM", "chromium"), "--headless=new", "--no-sandbox",
             "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
             "--disable-background-networking", "--remote-debugging-port=0",
             f"--user-data-dir={profile}", "about:blank"],
            stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
        self.number, self.requests, self.said = 0, [], []
        until, where = time.time() + 60, os.path.join(profile, "DevToolsActivePort")
        while not os.path.exists(where):
            assert self.process.poll() is None and time.time() < until, "chromium does not start"
            time.sleep(0.05)
        port = ""
        while not port.strip():
            with open(where, encoding="utf-8") as f:
                port = f.readline()
        with urllib.request.urlopen(f"http://127.0.0.1:{port.strip()}/json/list", timeout=60) as r:
            page = next(p for p in json.load(r) if p["type"] == "page")
        self.socket = Socket(page["webSocketDebuggerUrl"])
        for domain in "Page", "Network", "Runtime", "Log":
            self.do(domain + ".enable")

    def do(self, method, **params):
        self.number += 1
        self.socket.send(json.dumps({"id": self.number, "method": method, "params": params}))
        while True:
            m = json.loads(self.socket.receive())
            if m.get("id") == self.number:
                assert "error" not in m, m
                return m["result"]
            self.hear(m)

    def hear(self, m):
        p = m.get("params", {})
        if m["method"] == "Network.requestWillBeSent":
            self.requests.append(p["request"]["url"])
        if m["method"] == "Runtime.exceptionThrown":
            self.said.append(p["exceptionDetails"]["text"])
        if m["method"] == "Log.entryAdded" and p["entry"]["source"] != "network":
            self.said.append(p["entry"]["text"])

    def get(self, expression):
        r = self.do("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in r, r
        return r["result"].get("value")

    def wait(self, expression, seconds=30):
        until = time.time() + seconds
        while not self.get(expression):
            assert time.time() < until, f"{expression} does not come; the page is\n" + self.get(
                "document.body.innerText")
            time.sleep(0.01)

    def open(self, url):
        self.do("Page.navigate", url=url)
        self.wait("document.readyState === 'complete' && location.href !== 'about:blank'")

    def set(self, field, value):
        self.get(f"{{ const e = document.getElementById('{field}'); e.value = {json.dumps(value)};"
                 "e.dispatchEvent(new Event('change')); }")

    def click(self, button):
        """As a mouse does: what is covered, or disabled, is not clicked."""
        x, y = self.get(f"{{ const e = document.getElementById('{button}'); e.scrollIntoView();"
                        "const b = e.getBoundingClientRect();"
                        "[b.x + b.width / 2, b.y + b.height / 2] }")
        for kind in "mousePressed", "mouseReleased":
            self.do("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def say(self, text, key=None):
        """Typed; sent by a key, or by the button."""
        self.get("document.getElementById('text').focus()")
        self.do("Input.insertText", text=text)
        if key is None:
            self.click("send")
        else:
            for kind in "keyDown", "keyUp":
                self.do("Input.dispatchKeyEvent", type=kind, key=key, code=key, text="\r",
                        windowsVirtualKeyCode=13)

    def click_while_it_writes(self, button):
        """A button, by the page itself: nobody else is fast enough."""
        self.get("window.clicked = false; new MutationObserver((_, o) => {"
                 "const all = document.querySelectorAll('#log .assistant'), e = all[all.length - 1];"
                 "if (!e || e.textContent.length < 6 || document.getElementById('stop').disabled)"
                 "return; o.disconnect(); window.clicked = true;"
                 f"document.getElementById('{button}').click(); }}).observe("
                 "document.getElementById('log'),"
                 "{ childList: true, subtree: true, characterData: true })")

    def shown(self, who):
        return self.get(f"[...document.querySelectorAll('#log .{who}')].map(e => e.textContent)")

    def stop(self):
        try:
            self.do("Browser.close")
        except (AssertionError, OSError):
            pass
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


IDLE = "!document.getElementById('send').disabled"
LAST = "document.querySelector('#log .assistant:last-of-type')"


def without_a_key_it_says_so(b, s):
    b.open(s.url + "/")
    b.wait("document.querySelectorAll('#log .error').length > 0")
    assert "key" in b.shown("error")[0].lower(), b.shown("error")


def with_a_key_there_are_models(b, s):
    b.set("key", KEY)
    b.wait("document.getElementById('model').options.length === 1")
    assert b.get("document.getElementById('model').value") == "small"


def a_message_is_answered_while_it_is_written(b, s):
    b.set("tokens", "200")
    b.get("window.lengths = new Set(); new MutationObserver(() => lengths.add("
          f"{LAST} ? {LAST}.textContent.length : 0)).observe(document.getElementById('log'),"
          "{ childList: true, subtree: true, characterData: true })")
    b.say("Speak, I pray thee <b>now</b>.")
    b.wait(f"{LAST} && {LAST}.textContent && {IDLE}")
    assert b.get("lengths.size") > 3, "the answer came in one piece"
    assert b.shown("user") == ["Speak, I pray thee <b>now</b>."], b.shown("user")
    assert b.get("document.querySelectorAll('#log b').length") == 0
    assert b.get("document.getElementById('figures').textContent").startswith("200 tokens")


def enter_sends_and_the_conversation_goes_on(b, s):
    b.set("tokens", "8")
    b.say("And thou?", key="Enter")
    b.wait(f"document.querySelectorAll('#log .assistant').length === 2 && {IDLE}")
    assert b.get("document.getElementById('text').value") == ""
    roles = b.get("turns.map(t => t.role).join()")
    assert roles == "user,assistant,user,assistant", roles


def an_answer_is_stopped(b, s):
    before = len(s.lines())
    b.set("tokens", "100000")
    figures = b.get("document.getElementById('figures').textContent")
    b.click_while_it_writes("stop")
    b.say("Go on.")
    b.wait(f"document.querySelectorAll('#log .assistant').length === 3 && {IDLE}", 10)
    assert b.get("document.getElementById('figures').textContent") == figures, "it ended by itself"
    text = b.shown("assistant")[-1]
    time.sleep(0.3)
    assert b.shown("assistant")[-1] == text, "it goes on"
    until = time.time() + 5
    while len(s.lines()) == before:
        assert time.time() < until, "the server has not ended the request"
        time.sleep(0.05)


def an_error_is_shown_and_the_message_is_not_lost(b, s):
    errors = len(b.shown("error"))
    b.set("tokens", "0")
    b.say("Answer nothing.")
    b.wait(f"document.querySelectorAll('#log .error').length === {errors + 1} && {IDLE}")
    assert "max_tokens" in b.shown("error")[-1], b.shown("error")
    assert "Answer nothing." in b.get("document.getElementById('text').value")


def after_an_error_it_is_answered_again(b, s):
    n = len(b.shown("assistant"))
    b.set("text", "")
    b.set("tokens", "8")
    b.say("Once more.")
    b.wait(f"document.querySelectorAll('#log .assistant').length === {n + 1} && {IDLE}")
    assert b.shown("assistant")[-1], "an empty answer"


def clear_forgets(b, s):
    b.click("clear")
    assert b.get("turns.length + document.getElementById('log').children.length") == 0


def a_clear_while_an_answer_comes_ends_it(b, s):
    b.set("tokens", "100000")
    b.click_while_it_writes("clear")
    b.say("Speak.")
    b.wait(f"window.clicked && {IDLE}", 10)
    assert b.get("turns.length + document.getElementById('log').children.length") == 0


def a_server_that_has_gone_is_an_error(b, s):
    s.stop()
    b.say("Art thou there?")
    b.wait(f"document.querySelectorAll('#log .error').length === 1 && {IDLE}")


def nobody_else_was_asked(b, s):
    foreign = [u for u in b.requests if not u.startswith((s.url + "/", "data:", "about:"))]
    assert len(b.requests) > 5 and not foreign, foreign
    assert not b.said, b.said


CASES = [without_a_key_it_says_so, with_a_key_there_are_models,
         a_message_is_answered_while_it_is_written, enter_sends_and_the_conversation_goes_on,
         an_answer_is_stopped, an_error_is_shown_and_the_message_is_not_lost,
         after_an_error_it_is_answered_again, clear_forgets, a_clear_while_an_answer_comes_ends_it,
         a_server_that_has_gone_is_an_error, nobody_else_was_asked]


def main():
    binary = sys.argv[1] if len(sys.argv) > 1 else "build/release/bin/dtensor"
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        s = Server(binary, folder)
        b = Browser(folder)
        try:
            for case in CASES:
                try:
                    case(b, s)
                    print("ok  ", case.__name__)
                except (AssertionError, KeyError, TypeError) as e:
                    failed += 1
                    print("FAIL", case.__name__, e)
        finally:
            b.stop()
            if s.process.poll() is None:
                s.stop()
    print(f"{len(CASES) - failed} of {len(CASES)}")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
