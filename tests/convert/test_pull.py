"""`kvarn hf-pull` against a hub on the loopback: the real library, the real protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from .hub_server import TOKEN, Hub, Repository, tiny_gguf

REPO = "org/tiny"
WEIGHTS = np.random.default_rng(0).bytes(12_000_000)
CUT = 11_000_000
"""More than the 10 MB that the library keeps at a time."""
FILES = {
    "config.json": b'{"architectures": ["LlamaForCausalLM"]}',
    "README.md": b"# Tiny\n",
    "model.safetensors": WEIGHTS,
    "pytorch_model.bin": b"\x80" * 9000,
}


MARK = "\x1e"
SCRIPT = f"""
import os, sys
from kvarn.cli import main
for command in {{commands}}:
    if command[0].startswith("HF_TOKEN="):
        os.environ["HF_TOKEN"] = command.pop(0).removeprefix("HF_TOKEN=")
    code = main(command)
    print(end={MARK!r})
    print(code, end={MARK!r}, file=sys.stderr)
"""


@dataclass
class User:
    """Someone at a terminal, with a home of their own."""

    folder: Path
    hub: Hub

    def environment(self, **more: str) -> dict[str, str]:
        """Of a process of theirs."""
        own = {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.folder / "hf"),
            "KVARN_HOME": str(self.folder / "home"),
            "HF_HUB_DISABLE_TELEMETRY": "1",
        }
        hf = {key for key in os.environ if key.startswith(("HF_", "HUGGING"))}
        inherited = {key: value for key, value in os.environ.items() if key not in hf}
        return inherited | own | more

    def started(self, *arguments: str) -> subprocess.Popen[bytes]:
        """A command that runs."""
        command = [sys.executable, "-m", "kvarn", *arguments]
        return subprocess.Popen(
            command, env=self.environment(), cwd=self.folder, stderr=subprocess.DEVNULL
        )

    def kvarn(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        """A command that has run."""
        return self.one_after_another([arguments], **environment)[0]

    def one_after_another(
        self, commands: Sequence[Sequence[str]], **environment: str
    ) -> list[subprocess.CompletedProcess[str]]:
        """Commands that have run in one process, which takes less time than one for each."""
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT.format(commands=[list(c) for c in commands])],
            env=self.environment(**environment),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=True,
        )
        parts = zip(commands, done.stdout.split(MARK), done.stderr.split(MARK))
        return [
            subprocess.CompletedProcess(command, int(err[-1]), out, err[:-1])
            for command, out, err in parts
        ]


@pytest.fixture
def user(tmp_path: Path, hub: Hub) -> User:
    return User(tmp_path, hub)


@pytest.fixture
def repository(hub: Hub) -> Hub:
    """The hub, with a repository of small and large files."""
    hub.repositories[REPO] = Repository(dict(FILES))
    return hub


def test_an_interrupted_transfer_resumes_and_what_is_there_is_not_pulled_again(
    user: User, repository: Hub
) -> None:
    repository.cut_after = [CUT]
    repository.waits = 1
    done, again = user.one_after_another([("hf-pull", REPO)] * 2)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "README.md", "model.safetensors"
    }  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    first, second = repository.bodies("model.safetensors")
    assert first == "" and 0 < start_of(second) <= CUT
    assert "going on in 1 s" in done.stderr  # the hub's Retry-After
    assert again.stdout == done.stdout  # by the same two transfers


def start_of(asked: str) -> int:
    """First byte of a Range that asks for the rest of a file."""
    unit, start, end = asked.replace("=", "-").split("-")
    assert (unit, end) == ("bytes", str(len(WEIGHTS) - 1))
    return int(start)


def test_a_killed_pull_leaves_whole_files_which_the_next_one_keeps(
    user: User, repository: Hub
) -> None:
    repository.stall_after = [CUT]
    with user.started("hf-pull", REPO) as process:
        assert repository.stalled.wait(60)
        process.kill()
    assert not list((user.folder / "hf").rglob("model.safetensors"))
    done = user.kvarn("hf-pull", REPO)
    assert (Path(done.stdout.strip()) / "model.safetensors").read_bytes() == WEIGHTS
    assert len(repository.bodies("config.json")) == 1


def test_ctrl_c_ends_a_pull_at_once(user: User, repository: Hub) -> None:
    repository.stall_after = [CUT]
    with user.started("hf-pull", REPO) as process:
        assert repository.stalled.wait(60)
        process.send_signal(signal.SIGINT)
        assert process.wait(5) == 130


def test_offline_takes_what_was_pulled_before(user: User, repository: Hub) -> None:
    pulled = user.kvarn("hf-pull", REPO).stdout
    asked = len(repository.requests)
    offline, other = user.one_after_another(
        [("hf-pull", REPO), ("hf-pull", "org/other")], HF_HUB_OFFLINE="1"
    )
    assert (offline.returncode, offline.stdout) == (0, pulled)
    assert "taking what was pulled before" in offline.stderr
    assert len(repository.requests) == asked
    assert other.returncode == 1 and "has not been pulled to this machine" in other.stderr
    # The same where nobody answers.
    assert user.kvarn("hf-pull", REPO, HF_ENDPOINT="http://127.0.0.1:9").stdout == pulled


def test_a_folder_of_ones_own_a_revision_and_patterns(user: User, repository: Hub) -> None:
    repository.repositories[REPO].revisions = ("main", "v2")
    chosen = ("--include", "*.json", "*.md", "--exclude", "README*")
    done, refused = user.one_after_another(
        [
            ("hf-pull", f"{repository.url}/{REPO}", "--to", "mine", "--revision", "v2", *chosen),
            ("hf-pull", REPO, "--revision", "v3"),
        ]
    )
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (user.folder / "mine").iterdir() if p.is_file()] == ["config.json"]
    assert not (user.folder / "hf" / "hub").exists()
    assert refused.returncode == 1 and "no such --revision" in refused.stderr


def test_ready_models_are_listed_and_one_is_taken(user: User, hub: Hub) -> None:
    sizes = {"m-Q8_0.gguf": 9000, "m-Q4_K_M.gguf": 6000, "m-F16.gguf": 12_000}
    hub.repositories[REPO] = Repository({name: tiny_gguf(n) for name, n in sizes.items()})
    done, named, converted, tokenized = user.one_after_another(
        [
            ("hf-pull", REPO),
            ("hf-pull", REPO, "--file", "q4_k_m"),
            ("convert", "out.gguf"),
            ("tokenize", "x"),
        ]
    )
    assert done.stdout.strip().endswith("m-Q8_0.gguf")
    assert Path(done.stdout.strip()).stat().st_size == 9000
    lines = [line.split() for line in done.stderr.splitlines()]
    assert ["kvarn:", "Q4_K_M", "5.86", "KiB", "m-Q4_K_M.gguf"] in lines
    assert ["kvarn:", "Q8_0", "8.79", "KiB", "m-Q8_0.gguf", "←", "pulled"] in lines
    assert hub.bodies("m-F16.gguf") == []
    assert named.stdout.strip().endswith("m-Q4_K_M.gguf")
    # What can be run is what commands take without -m; there is nothing left to convert.
    assert converted.returncode == 1 and "GGUF file already" in converted.stderr
    assert "m-Q4_K_M.gguf" in tokenized.stderr


REFUSALS = (
    ("org/gated", "", "org/gated is gated: accept its terms at http"),
    ("org/gated", TOKEN, "org/gated is gated and your account has no access"),
    ("org/private", "", "there is no repository org/private at http"),
    ("org/public", "hf_wrong", "the hub does not know your token"),
    ("org/forbidden", TOKEN, "your token may not read org/forbidden"),
    ("org/none", "", "there is no repository org/none"),
    ("a/b/c", "", "'a/b/c' is not a repository name: expected ORGANISATION/MODEL"),
)


def test_refusals_say_what_to_do_in_one_line(user: User) -> None:
    for access in ("gated", "private", "public", "forbidden"):
        user.hub.repositories[f"org/{access}"] = Repository(dict(FILES), access=access)
    asked = [(f"HF_TOKEN={token}", "hf-pull", repo) for repo, token, _ in REFUSALS]
    for done, (_, _, expected) in zip(user.one_after_another(asked), REFUSALS, strict=True):
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(f"kvarn: {expected}") and done.stderr.count("\n") == 1
