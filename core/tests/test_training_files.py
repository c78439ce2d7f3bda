"""What a run reads and leaves: tasks, data order, metrics, checkpoint folders, intervals, the curve."""

from __future__ import annotations

import json
import math
import os
import re
import resource
import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spangrad.errors import CheckpointError, RunFolderError, TaskError
from spangrad.training import new_run_folder, proportion, resumed_run_folder
from spangrad.training._curve import draw_curve
from spangrad.training._evaluation import path_safe
from spangrad.training._metrics import MetricsFile
from spangrad.training._order import tasks_from, tasks_of_step
from spangrad.training._run_file import write_whole
from spangrad.training._run_folder import RunFolder
from spangrad.training._tasks import digest, load_demonstrations, load_tasks
from spangrad.training._toml_positions import key_lines, line_of


class TestTasks:
    def test_a_jsonl_file_gives_tasks_with_their_ids_or_positions(self, tmp_path: Path) -> None:
        (tmp_path / "t.jsonl").write_text('{"task_id": "a", "q": 1}\n\n{"q": 2}\n')

        tasks = load_tasks("t.jsonl", tmp_path)

        assert [(task.task_id, task.data["q"]) for task in tasks] == [("a", 1), ("1", 2)]

    def test_a_function_gives_tasks(self, tmp_path: Path) -> None:
        (tmp_path / "mytasks.py").write_text("def train():\n    return ({'q': i} for i in range(3))\n")

        assert [task.data for task in load_tasks("mytasks:train", tmp_path)] == [{"q": 0}, {"q": 1}, {"q": 2}]

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ('{"q": 1}\n{"q"\n', "line 2 is not JSON"),
            ('{"q": 1}\n[1]\n', "line 2 is list, not a JSON object"),
            ('{"task_id": 1}\n{"task_id": "1"}\n', "two tasks have the task_id"),
            ('{"task_id": null}\n', "neither text nor a whole number"),
            ("\n", "holds no tasks"),
        ],
    )
    def test_bad_files_are_errors_that_name_the_place(self, tmp_path: Path, text: str, message: str) -> None:
        (tmp_path / "t.jsonl").write_text(text)

        with pytest.raises(TaskError, match=message):
            load_tasks("t.jsonl", tmp_path)

    def test_a_missing_file_and_a_raising_function_are_errors(self, tmp_path: Path) -> None:
        (tmp_path / "raising.py").write_text("def train():\n    yield {}\n    raise RuntimeError('no database')\n")

        with pytest.raises(TaskError, match="cannot be read"):
            load_tasks("none.jsonl", tmp_path)
        with pytest.raises(TaskError, match="raised RuntimeError: no database"):
            load_tasks("raising:train", tmp_path)

    def test_a_value_json_has_no_word_for_is_an_error(self, tmp_path: Path) -> None:
        (tmp_path / "odd.py").write_text("def train():\n    return [{'q': float('nan')}]\n")

        with pytest.raises(TaskError, match="cannot be written as JSON"):
            load_tasks("odd:train", tmp_path)

    def test_demonstrations_need_an_assistant_message(self, tmp_path: Path) -> None:
        good = {"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}
        (tmp_path / "good.jsonl").write_text(json.dumps(good))
        (tmp_path / "mute.jsonl").write_text(json.dumps({"messages": good["messages"][:1]}))
        (tmp_path / "bare.jsonl").write_text("{}")

        assert load_demonstrations("good.jsonl", tmp_path) == (good,)
        with pytest.raises(TaskError, match="no assistant message"):
            load_demonstrations("mute.jsonl", tmp_path)
        with pytest.raises(TaskError, match='no "messages" list'):
            load_demonstrations("bare.jsonl", tmp_path)

    def test_the_digest_notices_other_tasks_and_another_order(self, tmp_path: Path) -> None:
        (tmp_path / "t.jsonl").write_text('{"q": 1}\n{"q": 2}\n')
        tasks = load_tasks("t.jsonl", tmp_path)

        assert digest(tasks) == digest(load_tasks("t.jsonl", tmp_path))
        assert digest(tasks) != digest(tasks[::-1])

    def test_ids_that_differ_only_in_characters_urls_have_no_place_for_stay_different(self) -> None:
        ids = ["a/b", "a_b", "a b", "東京", "大阪", "_", "plain-1.2~x"]

        safe = [path_safe(text) for text in ids]

        assert len(set(safe)) == len(ids)
        assert all(re.fullmatch(r"[A-Za-z0-9._~-]+", text) for text in safe)
        assert (safe[1], safe[-1]) == ("a_b", "plain-1.2~x")


class TestOrder:
    @given(tasks=st.integers(1, 30), seed=st.integers(0, 5), data=st.data())
    def test_an_epoch_sees_every_task_once_when_steps_divide_it(
        self, tasks: int, seed: int, data: st.DataObject
    ) -> None:
        per_step = data.draw(st.sampled_from([n for n in range(1, tasks + 1) if tasks % n == 0]))
        steps = tasks // per_step

        seen = [i for s in range(1, steps + 1) for i in tasks_of_step(s, tasks=tasks, per_step=per_step, seed=seed)]

        assert sorted(seen) == list(range(tasks))

    @given(tasks=st.integers(1, 12), seed=st.integers(0, 3), step=st.integers(1, 60), data=st.data())
    def test_a_step_never_sees_a_task_twice_and_never_changes(
        self, tasks: int, seed: int, step: int, data: st.DataObject
    ) -> None:
        per_step = data.draw(st.integers(1, tasks))

        chosen = tasks_of_step(step, tasks=tasks, per_step=per_step, seed=seed)

        assert len(set(chosen)) == per_step
        assert chosen == tasks_of_step(step, tasks=tasks, per_step=per_step, seed=seed)

    def test_more_tasks_than_there_are_cannot_be_drawn(self) -> None:
        with pytest.raises(ValueError, match="3 more tasks of 4 are wanted, and 2 are taken"):
            tasks_from(0, tasks=4, count=3, seed=0, taken=[1, 2])

    @given(tasks=st.integers(1, 12), seed=st.integers(0, 3), start=st.integers(0, 40), data=st.data())
    def test_tasks_drawn_bit_by_bit_are_those_drawn_at_once(
        self, tasks: int, seed: int, start: int, data: st.DataObject
    ) -> None:
        counts = data.draw(st.lists(st.integers(0, tasks), max_size=5).filter(lambda some: sum(some) <= tasks))
        position, taken = start, list[int]()

        for count in counts:
            more, position = tasks_from(position, tasks=tasks, count=count, seed=seed, taken=taken)
            taken += more

        assert len(set(taken)) == len(taken) == sum(counts)
        assert (taken, position) == tasks_from(start, tasks=tasks, count=sum(counts), seed=seed)

    @given(
        tasks=st.integers(1, 12), seed=st.integers(0, 3), counts=st.lists(st.integers(1, 12), min_size=1, max_size=8)
    )
    def test_no_task_comes_twice_in_an_epoch_however_many_each_step_draws(
        self, tasks: int, seed: int, counts: list[int]
    ) -> None:
        position, epochs = 0, dict[int, list[int]]()

        for count in counts:
            for _ in range(min(count, tasks)):
                (index,), after = tasks_from(position, tasks=tasks, count=1, seed=seed)
                epochs.setdefault((after - 1) // tasks, []).append(index)
                position = after

        assert all(len(set(seen)) == len(seen) for seen in epochs.values())

    def test_a_task_met_again_at_the_seam_is_passed_over(self) -> None:
        first, position = tasks_from(0, tasks=3, count=2, seed=0)
        rest, after = tasks_from(position, tasks=3, count=1, seed=0)

        again, beyond = tasks_from(position, tasks=3, count=3, seed=0)

        assert sorted(first + rest) == sorted(again) == [0, 1, 2]
        assert after == 3
        assert beyond >= 5  # the last of the first epoch, and two new ones of the second

    def test_seeds_give_different_orders(self) -> None:
        orders = {tuple(tasks_of_step(1, tasks=100, per_step=10, seed=seed)) for seed in range(5)}

        assert len(orders) == 5


class TestProportion:
    def test_wilson_interval_matches_published_figures(self) -> None:
        """Newcombe 1998 (Statistics in Medicine 17:857), table I: 81/263 gives 0.2553 to 0.3662, 0/20 gives 0 to 0.1611."""
        some, none = proportion(81, 263), proportion(0, 20)

        assert (round(some.low, 4), round(some.high, 4)) == (0.2553, 0.3662)
        assert (none.low, round(none.high, 4)) == (0.0, 0.1611)

    def test_nothing_tried_says_nothing(self) -> None:
        nothing = proportion(0, 0)

        assert (nothing.low, nothing.high) == (0.0, 1.0)
        assert math.isnan(nothing.value)


class TestMetricsFile:
    def test_a_torn_last_line_is_left_out_and_later_steps_are_dropped_on_resume(self, tmp_path: Path) -> None:
        metrics = MetricsFile(tmp_path / "metrics.jsonl")
        for step in (0, 1, 2, 3):
            metrics.append("step", step=step, loss=float("nan"))
        with metrics.path.open("a") as file:
            file.write('{"kind": "st')

        metrics.keep_until(2)

        assert metrics.read() == [{"kind": "step", "step": step, "loss": None} for step in (0, 1, 2)]

    def test_there_is_nothing_to_read_before_anything_is_written(self, tmp_path: Path) -> None:
        assert MetricsFile(tmp_path / "metrics.jsonl").read() == []

    def test_a_full_disk_loses_the_new_record_only_and_says_so(self, tmp_path: Path) -> None:
        metrics = MetricsFile(tmp_path / "metrics.jsonl")
        metrics.append("step", step=1)
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (metrics.path.stat().st_size + 10, limits[1]))
        try:
            with pytest.raises(RunFolderError, match=r"metrics\.jsonl cannot be written: File too large"):
                metrics.append("step", step=2)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert metrics.lost_record
        metrics.append("step", step=2)
        assert [record["step"] for record in metrics.read()] == [1, 2]
        assert not metrics.lost_record


class TestRunFile:
    def test_a_file_is_replaced_whole_or_stays_as_it_was(self, tmp_path: Path) -> None:
        file = tmp_path / "a.json"
        write_whole(file, "old")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, limits[1]))
        try:
            with pytest.raises(RunFolderError, match="cannot be written: File too large"):
                write_whole(file, "new" * 100)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)

        assert file.read_text() == "old"
        assert list(tmp_path.iterdir()) == [file]


class TestRunFolder:
    def test_one_holds_it_at_a_time_and_is_named(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)

        with (
            folder.in_use(),
            pytest.raises(RunFolderError, match=f"in use by process {os.getpid()}"),
            folder.in_use(),
        ):
            pytest.fail("two hold it")
        with folder.in_use():
            pass

    def test_a_child_that_was_forked_meanwhile_does_not_hold_it(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)
        with folder.in_use():
            child = os.fork()
            if child == 0:
                signal.pause()
        try:
            with folder.in_use():
                pass
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)

    def test_a_run_never_overwrites_another_and_resume_finds_the_latest(self, tmp_path: Path) -> None:
        names = [new_run_folder(tmp_path, "demo").path.name for _ in range(11)]
        new_run_folder(tmp_path, "demo-evaluation")

        assert names[:3] == ["demo", "demo-2", "demo-3"]
        assert resumed_run_folder(tmp_path, "demo").path.name == "demo-11"

    def test_resuming_what_never_ran_is_an_error(self, tmp_path: Path) -> None:
        with pytest.raises(CheckpointError, match="no run named demo"):
            resumed_run_folder(tmp_path, "demo")

    def test_only_the_latest_whole_checkpoint_is_kept(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)
        for step in (1, 2):
            with folder.new_checkpoint(step) as path:
                (path / "x").write_text(str(step))

        assert [entry.name for entry in folder.checkpoints.iterdir()] == ["step-00002"]
        assert folder.latest_checkpoint() == (2, folder.checkpoints / "step-00002")

    def test_a_checkpoint_that_fails_half_way_leaves_the_previous_one(self, tmp_path: Path) -> None:
        folder = RunFolder(tmp_path)
        with folder.new_checkpoint(1) as path:
            (path / "x").write_text("1")

        with pytest.raises(FileNotFoundError), folder.new_checkpoint(2) as path:
            (path / "no such folder" / "x").write_text("2")

        assert [entry.name for entry in folder.checkpoints.iterdir()] == ["step-00001"]
        found = folder.latest_checkpoint()
        assert found is not None
        assert found[0] == 1


class TestTomlPositions:
    def test_lines_of_tables_and_keys_are_found_past_comments_and_long_strings(self) -> None:
        text = 'a = 1\n[b]  # table\nc.d = """\n[x]\ny = 2\n"""\n"e f" = 3\n[[g]]\nh = 4\n'

        lines = key_lines(text)

        assert lines == {
            ("a",): 1,
            ("b",): 2,
            ("b", "c", "d"): 3,
            ("b", "e f"): 7,
            ("g",): 8,
            ("g", "0"): 8,
            ("g", "0", "h"): 9,
        }

    def test_elements_of_an_array_of_tables_and_what_is_in_them_go_by_their_number(self) -> None:
        text = "[[a.b]]\nc = 1\n[[a.b]]\nc = 2\n[a.b.d]\ne = 1\n[[a.b.f]]\ng = 1\n[h]\nc = 3\n"
        lines = key_lines(text)

        assert [line_of(lines, ("a", "b", number, "c")) for number in (0, 1)] == [2, 4]
        assert [line_of(lines, ("a", "b", 1, *rest)) for rest in (("d", "e"), ("f", 0, "g"), ("unknown",))] == [6, 8, 3]
        assert line_of(lines, ("a", "b")) == 1
        assert line_of(lines, ("h", "c")) == 10

    def test_a_key_without_a_line_has_its_tables(self) -> None:
        assert line_of({("b",): 2}, ("b", "missing", 0)) == 2
        assert line_of({("b",): 2}, ("a",)) is None


def test_the_curve_is_a_picture_of_the_size_asked_for(tmp_path: Path) -> None:
    evaluations: list[dict[str, object]] = [
        {"kind": "evaluation", "heldout": name, "step": step, "success": 0.5, "success_low": 0.4, "success_high": 0.6}
        for name in ("a", "b")
        for step in (0, 2)
    ]
    steps: list[dict[str, object]] = [
        {"kind": "step", "step": 1, "reward_mean": 0.2},
        {"kind": "step", "step": 2, "reward_mean": None},
    ]

    draw_curve([*evaluations, *steps], tmp_path / "curve.png", title="demo")

    head = (tmp_path / "curve.png").read_bytes()[:24]
    assert head[:8] == b"\x89PNG\r\n\x1a\n"
    assert (int.from_bytes(head[16:20]), int.from_bytes(head[20:24])) == (960, 540)
