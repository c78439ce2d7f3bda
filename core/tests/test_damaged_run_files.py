"""Files of a run that are damaged, gone or may not be read: said clearly, and what can be told from the rest still is."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from spangrad.errors import CheckpointError, ConfigError, RunFolderError
from spangrad.training._checkpoint import read_state
from spangrad.training._metrics import MetricsFile
from spangrad.training._run_folder import RunFolder, run_folders

STATE = {"warm_start_steps": 0, "step": 4, "train_seconds": 1.5, "identity": {"seed": 5}}
SETTINGS = {"backend": "scripted", "backend_options": {}, "seed": 5, "config": {}}


@contextmanager
def as_nobody() -> Iterator[None]:
    """Without the rights of root, where the tests have them."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with two runs; the current one, since nobody else may come by the folders above it."""
    for age, name in enumerate(("new", "old")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spangrad.db").touch()
        os.utime(tmp_path / name / "spangrad.db", (1e9 - age, 1e9 - age))
    monkeypatch.chdir(tmp_path)
    tmp_path.chmod(0o755)
    return Path()


class TestState:
    def test_a_whole_one_is_read(self, tmp_path: Path) -> None:
        (tmp_path / "state.json").write_text(json.dumps(STATE))

        assert read_state(tmp_path, {"seed": 5}).step == 4

    @pytest.mark.parametrize(
        ("text", "said"),
        [
            (None, "No such file"),
            ("", "Invalid JSON"),
            ("[]", "state.json: Input should be"),
            (json.dumps({**STATE, "step": "4"}), "step: Input should be a valid integer"),
            (json.dumps({**STATE, "identity": []}), "identity: Input should be"),
            (json.dumps({"step": 4}), "warm_start_steps: Field required"),
            ("[" * 100_000, "state.json: "),
            ("\udcff", "state.json: "),
        ],
    )
    def test_anything_else_is_a_damaged_checkpoint(self, tmp_path: Path, text: str | None, said: str) -> None:
        if text is not None:
            (tmp_path / "state.json").write_bytes(text.encode(errors="surrogateescape"))

        with pytest.raises(CheckpointError, match="is damaged") as caught:
            read_state(tmp_path, {"seed": 5})
        assert said in caught.value.what


class TestSettings:
    @pytest.mark.parametrize("text", ["", "[]", "{}", json.dumps({**SETTINGS, "config": 4}), "\udcff"])
    def test_anything_else_is_said(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "config.json").write_bytes(text.encode(errors="surrogateescape"))

        with pytest.raises(CheckpointError, match=r"config\.json does not hold a run's settings"):
            RunFolder(tmp_path).settings()


class TestMetrics:
    def test_what_is_no_record_is_passed_over(self, tmp_path: Path) -> None:
        metrics = MetricsFile(tmp_path / "metrics.jsonl")
        metrics.append("step", step=1)
        with metrics.path.open("ab") as file:
            file.write(b'[]\n3\n{"step": 2}\n\xff\xfe\n' + b"[" * 100_000 + b"\n")
        metrics.append("step", step=3)

        assert [record["step"] for record in metrics.read()] == [1, 3]
        metrics.keep_until(2)
        assert [record["step"] for record in metrics.read()] == [1]

    def test_a_file_that_cannot_be_read_is_said(self, tmp_path: Path) -> None:
        (tmp_path / "metrics.jsonl").mkdir()

        with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be read: Is a directory"):
            MetricsFile(tmp_path / "metrics.jsonl").read()


class TestRunFolders:
    def test_the_one_worked_on_last_is_first(self, runs: Path) -> None:
        assert [run.path.name for run in run_folders(runs)] == ["new", "old"]

    def test_one_that_may_not_be_looked_into_is_left_out(self, runs: Path) -> None:
        (runs / "new").chmod(0)

        with as_nobody():
            assert [run.path.name for run in run_folders(runs)] == ["old"]
        (runs / "new").chmod(0o755)

    def test_runs_that_may_not_be_listed_are_said(self, runs: Path) -> None:
        runs.chmod(0o311)

        with as_nobody(), pytest.raises(ConfigError, match="cannot be read: Permission denied"):
            run_folders(runs)
        runs.chmod(0o755)

    def test_checkpoints_that_may_not_be_listed_are_said(self, runs: Path) -> None:
        (runs / "new/checkpoints").mkdir(mode=0o311)

        with as_nobody(), pytest.raises(CheckpointError, match="checkpoints cannot be read: Permission denied"):
            RunFolder(runs / "new").latest_checkpoint()

    def test_a_file_in_place_of_the_folder_holds_no_runs(self, runs: Path) -> None:
        with pytest.raises(ConfigError, match="There is no run under"):
            run_folders(runs / "new/spangrad.db")
