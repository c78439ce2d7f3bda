"""Finding plug-ins among installed distributions: real metadata and modules in a folder on sys.path."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from spangrad.errors import ConfigError, PluginError
from spangrad.lightningrl import builtin_credit_assigners, builtin_estimators
from spangrad.plugins import Plugins, PluginState, load_plugins

GOOD = """
from spangrad.plugins import hookimpl

@hookimpl
def spangrad_register(register):
    register.credit_assigner({name!r}, dict)
"""

HALF_WAY = """
from spangrad.plugins import hookimpl

@hookimpl
def spangrad_register(register):
    register.credit_assigner("half", dict)
    raise OSError("half-way")
"""

Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Installs a distribution with one plug-in: its metadata and its module, in a folder on sys.path."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def add(
        name: str,
        code: str | None = None,
        *,
        distribution: str | None = None,
        needs: tuple[str, ...] = (),
        version: str = "1.2",
    ) -> None:
        distribution = distribution or f"dist-{name}"
        module = re.sub(r"\W", "_", f"{distribution}_{name}_of_{tmp_path.name}")
        info = tmp_path / f"{distribution.replace('-', '_')}-{version}.dist-info"
        info.mkdir()
        required = "".join(f"Requires-Dist: {need}\n" for need in needs)
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n{required}")
        (info / "entry_points.txt").write_text(f"[spangrad]\n{name} = {module}\n")
        (tmp_path / f"{module}.py").write_text(GOOD.format(name=f"assigner-of-{name}") if code is None else code)

    return add


def load(only: str, **environ: str) -> Plugins:
    """Loads only what the test installed, whatever else the environment holds."""
    return load_plugins({"SPANGRAD_PLUGINS": only, **environ})


def states(plugins: Plugins) -> dict[str, PluginState]:
    return {row.name: row.state for row in plugins.report}


def test_what_comes_with_spangrad_registers_through_the_same_door() -> None:
    plugins = load_plugins({"SPANGRAD_PLUGINS": ""})

    first = plugins.report[0]
    assert (first.name, first.distribution, first.state) == ("builtin", "spangrad", PluginState.LOADED)
    assert plugins.credit_assigners.names() == tuple(sorted(builtin_credit_assigners()))
    assert plugins.advantage_estimators.names() == tuple(sorted(builtin_estimators()))
    assert "advantage estimator grpo" in first.brings
    assert all(row.state is PluginState.BLOCKED for row in plugins.report[1:])
    assert plugins.backends.names() == ()


def test_plugins_load_in_the_order_of_their_names_and_the_report_says_what_they_brought(install: Install) -> None:
    install("zeta")
    install("alpha", version="0.3")

    plugins = load("zeta,alpha")
    loaded = [row for row in plugins.report if row.state is PluginState.LOADED]

    assert [(row.name, row.distribution, row.version) for row in loaded[1:]] == [
        ("alpha", "dist-alpha", "0.3"),
        ("zeta", "dist-zeta", "1.2"),
    ]
    assert loaded[1].brings == ("credit assigner assigner-of-alpha",)
    assert plugins.credit_assigners.row("assigner-of-zeta").distribution == "dist-zeta"


def test_a_missing_requirement_is_reported_without_importing_the_plugin(install: Install) -> None:
    install("broken", "raise SystemExit('imported')", needs=("no-such-framework>=2,<3",))

    row = next(row for row in load_plugins({}).report if row.name == "broken")

    assert row.state is PluginState.NOT_INSTALLED
    assert row.reason == "it needs no-such-framework<3,>=2, which is not installed"
    assert row.cure == 'pip install "no-such-framework<3,>=2"'


def test_a_requirement_outside_its_range_is_told_from_a_missing_one(install: Install) -> None:
    install("old", needs=("pluggy<0.1",))
    install("both", needs=("pluggy<0.1", "no-such-framework"))

    report = {row.name: row for row in load_plugins({}).report}

    assert report["old"].state is PluginState.WRONG_VERSION
    assert re.fullmatch(r"it needs pluggy<0\.1, but [\d.]+ is installed", report["old"].reason)
    assert report["both"].state is PluginState.NOT_INSTALLED


def test_requirements_of_extras_and_other_platforms_do_not_count(install: Install) -> None:
    install("fine", needs=('no-such-framework; extra == "test"', 'no-such-framework; sys_platform == "none"', "pluggy"))

    assert states(load("fine"))["fine"] is PluginState.LOADED


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_module", "raised ModuleNotFoundError: No module named 'no_such_module'"),
        ("1 / 0", "raised ZeroDivisionError: division by zero"),
        ("def (", "raised SyntaxError: "),
        (
            HALF_WAY,
            "its spangrad_register raised OSError: half-way",
        ),
    ],
)
def test_a_plugin_that_raises_is_a_row_and_the_others_load(install: Install, code: str, reason: str) -> None:
    install("broken", code)
    install("whole")

    plugins = load_plugins({})
    row = next(row for row in plugins.report if row.name == "broken")

    assert row.state is PluginState.IMPORT_FAILED
    assert reason in row.reason
    assert "assigner-of-whole" in plugins.credit_assigners
    assert "half" not in plugins.credit_assigners


def test_asking_for_what_an_unusable_plugin_brings_says_why_it_is_not_there(install: Install) -> None:
    install("frame", needs=("no-such-framework",))

    with pytest.raises(PluginError) as raised:
        load_plugins({}).backends.get("frame")

    assert raised.value.what == (
        "The backend 'frame' of dist-frame 1.2 is not usable: not installed, "
        "it needs no-such-framework, which is not installed"
    )
    assert raised.value.cure == 'pip install "no-such-framework"'


def test_naming_an_unusable_plugin_in_the_environment_is_an_error(install: Install) -> None:
    install("frame", needs=("no-such-framework",))

    with pytest.raises(PluginError, match=r"'frame' of dist-frame 1\.2 is not usable: not installed"):
        load("frame")


def test_strict_makes_any_unusable_plugin_an_error(install: Install) -> None:
    install("frame", needs=("no-such-framework",))
    install("broken", "1 / 0")

    with pytest.raises(PluginError) as raised:
        load_plugins({"SPANGRAD_STRICT": "1"})

    assert "'broken' of dist-broken" in raised.value.what
    assert "'frame' of dist-frame" in raised.value.what
    assert raised.value.what.endswith("(SPANGRAD_STRICT is set)")


def test_strict_does_not_mind_what_is_blocked(install: Install) -> None:
    install("frame", needs=("no-such-framework",))

    plugins = load_plugins({"SPANGRAD_STRICT": "yes", "SPANGRAD_PLUGINS": ""})

    assert states(plugins)["frame"] is PluginState.BLOCKED


def test_strict_is_yes_or_no() -> None:
    with pytest.raises(ConfigError, match="SPANGRAD_STRICT is 'perhaps'"):
        load_plugins({"SPANGRAD_STRICT": "perhaps"})


def test_the_environment_selects_and_disables_by_name(install: Install) -> None:
    install("one")
    install("two")
    install("three")

    plugins = load(" one , two ,", SPANGRAD_DISABLED_PLUGINS=" two")
    report = {row.name: row for row in plugins.report}

    assert report["one"].state is PluginState.LOADED
    assert (report["two"].state, report["two"].reason) == (PluginState.BLOCKED, "named in SPANGRAD_DISABLED_PLUGINS")
    assert (report["three"].state, report["three"].reason) == (PluginState.BLOCKED, "not named in SPANGRAD_PLUGINS")
    with pytest.raises(PluginError, match="blocked, named in SPANGRAD_DISABLED_PLUGINS"):
        plugins.integrations.get("two")


def test_naming_a_plugin_that_is_not_there_is_an_error(install: Install) -> None:
    install("one")

    with pytest.raises(PluginError, match="SPANGRAD_PLUGINS names 'onne', but no such plug-in is installed"):
        load("one,onne")


def test_two_distributions_with_a_plugin_of_one_name_are_refused(install: Install) -> None:
    install("same", distribution="first-dist")
    install("same", distribution="second-dist")

    with pytest.raises(PluginError) as raised:
        load("same")

    assert raised.value.what == "Two distributions bring a plug-in named 'same': first-dist and second-dist"
    assert states(load_plugins({"SPANGRAD_DISABLED_PLUGINS": "same"}))["same"] is PluginState.BLOCKED


def test_two_plugins_that_register_one_name_are_refused(install: Install) -> None:
    install("rival", GOOD.format(name="identical"))

    with pytest.raises(PluginError) as raised:
        load("rival")

    assert raised.value.what == (
        "Two plug-ins register the credit assigner 'identical': 'builtin' (spangrad) and 'rival' (dist-rival)"
    )


@pytest.mark.parametrize(
    ("hook", "problem"),
    [
        ("def spangrad_register(registry)", "registry"),
        ("def spangrad_registers(register)", "spangrad_registers"),
    ],
)
def test_a_hook_that_nobody_would_call_is_an_error_naming_the_plugin(install: Install, hook: str, problem: str) -> None:
    install("misspelt", f"from spangrad.plugins import hookimpl\n@hookimpl\n{hook}: pass\n")

    with pytest.raises(PluginError) as raised:
        load("misspelt")

    assert raised.value.what.startswith("The plug-in 'misspelt' (dist-misspelt 1.2) does not fit this spangrad: ")
    assert problem in raised.value.what
    assert "SPANGRAD_DISABLED_PLUGINS=misspelt" in raised.value.cure


def test_a_plugin_that_marks_no_hook_is_an_error(install: Install) -> None:
    install("unmarked", "def spangrad_register(register): pass\n")

    with pytest.raises(PluginError, match=r"'unmarked' \(dist-unmarked 1.2\) implements no hook"):
        load("unmarked")


def test_damaged_metadata_does_not_end_the_others(install: Install, tmp_path: Path) -> None:
    install("whole")
    broken = tmp_path / "nameless-1.0.dist-info"
    broken.mkdir()
    (broken / "entry_points.txt").write_text("[spangrad]\nnameless = no_such_module_anywhere\n")
    install("odd", needs=("not a requirement !!",))

    found = states(load_plugins({"SPANGRAD_DISABLED_PLUGINS": "nobody"}))

    assert found["whole"] is PluginState.LOADED
    assert found["odd"] is PluginState.LOADED
    assert found["nameless"] is PluginState.IMPORT_FAILED
