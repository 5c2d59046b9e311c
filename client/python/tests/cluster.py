"""A real cluster for the tests: the demo of the program that COPPICE_BIN names, on free ports."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import threading
from typing import Dict, List, Optional

PROGRAM = os.environ.get("COPPICE_BIN", "coppice")
START_SECONDS = 60.0


class Demo:
    """A running demo; ``with`` ends it."""

    def __init__(self, *arguments: str) -> None:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("COPPICE_")}
        self.process = subprocess.Popen(
            [PROGRAM, "demo", "--no-prompt", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean,
        )
        self.lines: List[str] = []
        watch = threading.Timer(START_SECONDS, self.process.kill)
        watch.start()
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.lines.append(line)
            if line.startswith("next:"):
                break
        watch.cancel()
        text = "".join(self.lines)
        self.endpoints: List[str] = re.findall(r"client (127\.0\.0\.1:\d+)", text)
        if not self.endpoints or not self.lines[-1].startswith("next:"):
            self.stop()
            raise RuntimeError(f"{PROGRAM} demo does not start:\n{text}")
        #: Certificates, as their variables name them.
        self.variables: Dict[str, str] = dict(re.findall(r"(COPPICE_TLS_\w+)=(\S+)", text))
        # What it says from now on has to be read, or the pipe fills.
        self.rest = threading.Thread(target=self.process.stdout.read, daemon=True)
        self.rest.start()

    def __enter__(self) -> Demo:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if hasattr(self, "rest"):
            self.rest.join(30)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def run(self, *arguments: str, token_file: Optional[str] = None) -> str:
        """Runs a verb of the program against the cluster; what it prints."""
        more = ["--token-file", token_file] if token_file else []
        command = [PROGRAM, *arguments, "--endpoints", ",".join(self.endpoints), *more]
        return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
