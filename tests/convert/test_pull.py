"""`kvarn hf-pull` against a hub on the loopback: the real library, the real protocol."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hub_server import TOKEN, Hub, Repository

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
        return subprocess.run(
            [sys.executable, "-m", "kvarn", *arguments],
            env=self.environment(**environment),
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    def refusal(self, *arguments: str, **environment: str) -> str:
        """The last line of a pull that fails."""
        done = self.kvarn("hf-pull", *arguments, **environment)
        assert (done.returncode, done.stdout) == (1, "")
        lines = done.stderr.splitlines()
        assert all(line.startswith("kvarn: ") for line in lines), done.stderr
        return lines[-1]


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
    done = user.kvarn("hf-pull", REPO)
    assert done.returncode == 0, done.stderr
    folder = Path(done.stdout.strip())
    assert {path.name for path in folder.iterdir()} == {
        "config.json", "README.md", "model.safetensors"
    }  # fmt: skip
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    first, second = repository.bodies("model.safetensors")
    assert first == "" and 0 < start_of(second) <= CUT
    assert "going on in 1 s" in done.stderr  # the hub's Retry-After
    repository.requests.clear()
    assert user.kvarn("hf-pull", REPO).stdout == done.stdout
    assert repository.bodies("model.safetensors") == []


def start_of(asked: str) -> int:
    """First byte of a Range that asks for the rest of a file."""
    unit, start, end = asked.replace("=", "-").split("-")
    assert (unit, end) == ("bytes", "")
    return int(start)


def test_a_killed_pull_leaves_whole_files_which_the_next_one_keeps(
    user: User, repository: Hub
) -> None:
    repository.stall_after = [CUT]
    with user.started("hf-pull", REPO) as process:
        assert repository.stalled.wait(60)
        process.kill()
    assert "neither safetensors" in user.refusal(REPO, HF_HUB_OFFLINE="1")
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
    offline = user.kvarn("hf-pull", REPO, HF_HUB_OFFLINE="1")
    assert (offline.returncode, offline.stdout) == (0, pulled)
    assert "taking what was pulled before" in offline.stderr
    assert len(repository.requests) == asked
    # The same where nobody answers; and what was not pulled is not there.
    assert user.kvarn("hf-pull", REPO, HF_ENDPOINT="http://127.0.0.1:9").stdout == pulled
    assert "has not been pulled to this machine" in user.refusal("org/other", HF_HUB_OFFLINE="1")


def test_a_folder_of_ones_own_a_revision_and_patterns(user: User, repository: Hub) -> None:
    repository.repositories[REPO].revisions = ("main", "v2")
    done = user.kvarn(
        "hf-pull", f"{repository.url}/{REPO}", "--to", "mine", "--revision", "v2",
        "--include", "*.json", "*.md", "--exclude", "README*",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [p.name for p in (user.folder / "mine").iterdir() if p.is_file()] == ["config.json"]
    assert not (user.folder / "hf" / "hub").exists()
    assert "no such --revision" in user.refusal(REPO, "--revision", "v3")


def test_ready_models_are_listed_and_one_is_taken(user: User, hub: Hub) -> None:
    sizes = {"m-Q8_0.gguf": 9000, "m-Q4_K_M.gguf": 6000, "m-F16.gguf": 12_000}
    hub.repositories[REPO] = Repository({name: bytes(n) for name, n in sizes.items()})
    done = user.kvarn("hf-pull", REPO)
    assert done.stdout.strip().endswith("m-Q8_0.gguf")
    assert Path(done.stdout.strip()).stat().st_size == 9000
    lines = [line.split() for line in done.stderr.splitlines()]
    assert ["kvarn:", "Q4_K_M", "5.86", "KiB", "m-Q4_K_M.gguf"] in lines
    assert ["kvarn:", "Q8_0", "8.79", "KiB", "m-Q8_0.gguf", "←", "pulled"] in lines
    assert hub.bodies("m-F16.gguf") == []
    named = user.kvarn("hf-pull", REPO, "--file", "q4_k_m")
    assert named.stdout.strip().endswith("m-Q4_K_M.gguf")
    # What can be run is what commands take without -m; there is nothing left to convert.
    converted = user.kvarn("convert", "out.gguf")
    assert converted.returncode == 1 and "GGUF file already" in converted.stderr
    assert "m-Q4_K_M.gguf" in user.kvarn("tokenize", "x").stderr


REFUSALS = (
    ("org/gated", "", "org/gated is gated: accept its terms at http"),
    ("org/gated", TOKEN, "org/gated is gated and your account has no access"),
    ("org/private", "", "there is no repository org/private at http"),
    ("org/public", "hf_wrong", "the hub does not know your token"),
    ("org/forbidden", TOKEN, "your token may not read org/forbidden"),
    ("org/none", "", "there is no repository org/none"),
    ("a/b/c", "", "'a/b/c' is no name of a repository: expected ORGANISATION/MODEL"),
)
SCRIPT = """
import os
from kvarn.cli import main
for repo, token in {asked}:
    os.environ["HF_TOKEN"] = token
    assert main(["hf-pull", repo]) == 1
"""


def test_refusals_say_what_to_do_in_one_line(user: User) -> None:
    for access in ("gated", "private", "public", "forbidden"):
        user.hub.repositories[f"org/{access}"] = Repository(dict(FILES), access=access)
    asked = [(repo, token) for repo, token, _ in REFUSALS]
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(asked=asked)],
        env=user.environment(), capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    lines = done.stderr.splitlines()
    assert len(lines) == len(REFUSALS)
    for line, (_, _, expected) in zip(lines, REFUSALS):
        assert line.startswith(f"kvarn: {expected}")
