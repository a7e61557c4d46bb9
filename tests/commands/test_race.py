"""`mlx-dspark race` as a user types it, and what it shows."""

import contextlib
import io
import json
import os
import pty
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

RACING = Path(__file__).parents[1] / "racing"
sys.path.append(str(RACING))

from rich.console import Console  # noqa: E402
from scripted import Pair, ScriptedDecoder  # noqa: E402
from scripted_race import STAMP, diverging, hold, runner, setup_of  # noqa: E402
from tiny import write_llama  # noqa: E402

from dspark.commands.app import run  # noqa: E402
from dspark.commands.interrupts import SIGNALS, Interrupts  # noqa: E402
from dspark.commands.race_outputs import Outputs  # noqa: E402
from dspark.commands.race_report import print_race  # noqa: E402
from dspark.commands.race_run import drive, exit_code, publish  # noqa: E402
from dspark.commands.race_view import Lane, LiveView, QuietView, View, view  # noqa: E402
from dspark.racing.result import RaceResult  # noqa: E402
from dspark.racing.runner import Runner  # noqa: E402

SHOW = f"""
import sys; sys.path.append({str(RACING)!r})
from scripted_race import diverging, hold
from dspark.commands.race_report import print_race
from dspark.commands.rendering import stdout_console
print_race(hold(diverging(), "lookup", "dspark:cap=4,lookup=off,confidence=0.3", "auto"), stdout_console())
"""
WATCH = f"""
import sys, time; sys.path.append({str(RACING)!r})
from scripted import Pair, ScriptedDecoder
from scripted_race import STAMP, diverging, runner, setup_of
from dspark.commands.interrupts import Interrupts
from dspark.commands.race_outputs import Outputs
from dspark.commands.race_run import drive, exit_code, publish
from dspark.commands.race_view import view
decoder = diverging(1e-6)
race = runner(decoder)
def slow(mode, tokens):
    time.sleep(0.1)
    return 0.1
def slower(*asked):
    print("comparing", flush=True)
    time.sleep(0.3)
    return ScriptedDecoder.top_two(decoder, *asked)
decoder.seconds, decoder.top_two = slow, slower
with Interrupts() as interrupts:
    result = drive(race, view(race.entrants), setup_of(race), Pair(), STAMP, interrupts)
    publish(result, Outputs(sys.argv[1]))
print("interrupted" if result.interrupted else "complete", len(race.trials), flush=True)
sys.exit(exit_code(result, interrupts.received))
"""


def driven(race: Runner, watched: View) -> RaceResult:
    return drive(race, watched, setup_of(race), Pair(), STAMP, Interrupts())


def environment(**variables: str) -> dict[str, str]:
    ours = ("LC_ALL", "LANG", "COLUMNS", "TERM", "NO_COLOR", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if name not in ours} | variables


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--max-tokens", "0"], "--max-tokens 0"),
        (["--trials", "0"], "--trials 0"),
        (["--trials", "-3"], "--trials -3"),
        (["--arm", "nonsense"], "'nonsense'"),
        (["--arm", "dspark:cap=0"], "cap=0"),
        (["--prompt", ""], "--prompt is empty"),
        (["--prompt-file", "none.txt"], "none.txt does not exist"),
        (["--prompt-file", "empty.txt"], "empty.txt holds no prompt"),
        (["--json", "-", "--markdown", "-"], "both want stdout"),
        (["--csv", "-", "--markdown", "-"], "both want stdout"),
        (["--csv", "none/race.csv"], "No such file or directory"),
        (["--csv", "race.out", "--json", "race.out"], "the same file"),
        (["--depth", "4q"], "--depth '4q'"),
        (["--cooldown", "-1"], "--cooldown -1"),
        (["--suite", "none.yaml"], "none.yaml: does not exist"),
        (["--suite", "empty.txt"], "empty.txt: holds no mapping"),
        (["--suite", "empty.txt", "--arm", "lookup"], "--arm does nothing beside --suite"),
        (["--suite", "empty.txt", "--compare", "a", "b"], "--suite does nothing beside --compare"),
        (["--compare", "a", "b", "--trials", "3"], "--trials does nothing beside --compare"),
        (["--compare", "none.json", "empty.txt"], "none.json cannot be read"),
        (["--compare", "empty.txt", "empty.txt"], "empty.txt is no result of race --json"),
        (["--compare", "empty.txt", "empty.txt", "--fail-below", "0"], "--fail-below 0"),
        (["--fail-below", "0.9"], "--fail-below does nothing without --compare"),
        (["--json", "none/race.json"], "No such file or directory"),
        (["--markdown", "."], "Is a directory"),
        (["--markdown", "new/"], "Is a directory"),
        (["--json", ""], "Is a directory"),
        (["--json", "empty.txt/race.json"], "Not a directory"),
        (["--json", "x" * 300], "File name too long"),
        (["--json", "race.out", "--markdown", "./race.out"], "the same file"),
        (["--json", "empty.txt", "--markdown", "link.txt"], "the same file"),
        (["--json", "dangling.txt", "--markdown", "."], "Is a directory"),
    ],
)
def test_what_cannot_be_meant_is_one_line_and_exit_2_before_a_model_is_loaded(
    arguments: list[str],
    named: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "dspark.engine", None)  # importing it would raise
    Path("empty.txt").touch()
    Path("link.txt").symlink_to("empty.txt")
    Path("dangling.txt").symlink_to("gone.txt")
    assert run(["race", *arguments]) == 2
    said = capsys.readouterr()
    assert named in said.err and said.err.count("\n") == 1
    assert said.out == ""
    assert {path.name for path in tmp_path.iterdir()} == {"empty.txt", "link.txt", "dangling.txt"}, (
        "trying leaves nothing behind"
    )


@pytest.mark.parametrize(
    ("result", "code"),
    [
        (hold(), 0),
        (hold(diverging(1e-6)), 0),
        (hold(diverging(1.5)), 3),
        (hold(ScriptedDecoder(broken=("lookup",))), 1),
        (hold(ScriptedDecoder(broken=("baseline",))), 1),
        (hold(ScriptedDecoder(broken=("baseline", "lookup", "dspark"))), 1),
    ],
)
def test_exit_codes(result, code: int) -> None:
    assert exit_code(result) == code


def test_an_interrupt_leaves_a_partial_table_and_exit_130(capsys: pytest.CaptureFixture[str]) -> None:
    """P9: Ctrl-C leaves partial results."""
    result = driven(runner(ScriptedDecoder(interrupt_at=3 + 4)), QuietView(Console(file=io.StringIO())))
    assert result.interrupted
    assert [exit_code(result, received) for received in (None, *SIGNALS)] == [130, 130, 143, 129]
    publish(result, Outputs())
    out = capsys.readouterr().out
    assert "interrupted" in out and "chat (1 prompt)" in out and "identical: 2 answers" in out


def test_json_on_stdout_is_alone_there(capsys: pytest.CaptureFixture[str]) -> None:
    publish(hold(), Outputs("-"))
    said = capsys.readouterr()
    assert json.loads(said.out)["summary"]["verdict"] == "identical"
    assert "identical: 12 answers" in said.err


def test_markdown_on_stdout_is_alone_there_and_json_goes_to_its_file(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    publish(hold(), Outputs(str(tmp_path / "race.json"), "-"))
    assert capsys.readouterr().out.startswith("# Race of toy")
    assert json.loads((tmp_path / "race.json").read_text())["schema"] == 1


def test_every_part_of_the_report_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    publish(hold(ScriptedDecoder(broken=("lookup",)), "lookup", "dspark", "auto"), Outputs())
    out = capsys.readouterr().out
    for part in (
        "dspark cap=auto lookup=on confidence=0",
        "chat (1 prompt)",
        "code (2 prompts)",
        "overall (2 classes)",
        "accepted by position",
        "chip Toy 1",
        "identical: ",
        "each arm gave the same tokens",
        "lookup failed: lookup went wrong",
        "warning: dspark and auto resolve to the same settings",
    ):
        assert part in " ".join(out.split()), part


@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_a_report_fits_the_terminal_in_a_c_locale_without_colour(columns: str) -> None:
    """P10: LANG=C, NO_COLOR, a pipe, 60 columns."""
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        env=environment(LANG="C", NO_COLOR="1", COLUMNS=columns),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.isascii() and "\x1b" not in done.stdout
    assert max(len(line) for line in done.stdout.splitlines()) <= int(columns)
    joined = "".join(done.stdout.split())
    for number in ("20.0", "2.00", "1.90", "11"):
        assert number in joined


@pytest.mark.parametrize("columns", range(20, 60, 3))
def test_no_number_is_cut_on_a_narrow_terminal(columns: int) -> None:
    decoder = ScriptedDecoder(seconds=lambda mode, tokens: 1e-4 * tokens / (2 if mode == "dspark" else 1))
    result, out = hold(decoder, "lookup", "dspark:cap=4,lookup=off", trials=3), io.StringIO()
    print_race(result, Console(file=out, width=columns, highlight=False))
    shown = out.getvalue()
    whole = re.findall(r"[0-9.%]+", shown)
    for rate in ("10000.0", "20000.0", "12666.7", "25333.3"):
        assert whole.count(rate) >= 3, rate
    assert max(map(len, shown.splitlines())) <= max(columns, 24)  # the longest word, an arm, stays whole in sentences


def test_a_terminal_of_20_columns_gets_a_line_a_cell() -> None:
    out = io.StringIO()
    print_race(hold(), Console(file=out, width=20, highlight=False))
    lines = [line.rstrip() for line in out.getvalue().splitlines()]
    for line in ("arm: dspark", "tok/s: 20.0", "ratio: 2.00", "prompt ms: 250", "tokens a round: 1.90", "forwards: 11"):
        assert line in lines


@pytest.mark.parametrize("columns", [20, 24, 30, 40])
def test_the_lanes_keep_their_numbers_on_a_narrow_terminal(columns: int) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=columns, color_system=None)
    race = runner(ScriptedDecoder(), trials=1)
    live = LiveView(console, race.entrants)
    for progress in race.run():
        live.show(progress)
    console.print(live._draw())
    assert {"10.0", "20.0", "1.00", "2.00"} <= set(re.findall("[0-9.]+", out.getvalue()))


def test_a_quiet_view_says_a_line_a_trial_and_no_control_character() -> None:
    """P10: no spinner junk where nobody watches."""
    out = io.StringIO()
    assert not driven(runner(ScriptedDecoder(broken=("lookup",))), QuietView(Console(file=out))).interrupted
    assert out.getvalue().splitlines() == [
        "lookup failed: lookup went wrong; load another model",
        "trial 1: answer 1 of 18",
        "trial 2: answer 11 of 18",
    ]


def test_what_is_piped_is_watched_quietly() -> None:
    assert isinstance(view(runner(ScriptedDecoder()).entrants), QuietView)


def test_a_lane_shows_text_rate_and_tokens_a_round_without_control_characters() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=80, color_system=None)
    decoder = ScriptedDecoder()
    decoder.decode = lambda tokens: "tail\x1b[2J\n" * len(tokens)  # type: ignore[method-assign]
    race = runner(decoder, trials=1)
    live = LiveView(console, race.entrants)
    for progress in race.run():
        live.show(progress)
    console.print(live._draw())
    shown = out.getvalue()
    assert "answer 9 of 9" in shown and "\x1b" not in shown
    row = next(line for line in shown.splitlines() if line.strip().startswith("dspark"))
    assert row.split()[1:3] == ["20.0", "2.00"] and "tail [2J" in row


def test_the_rate_of_a_lane_is_tokens_over_the_time_since_its_start_however_they_come() -> None:
    """B15: a stream of eight tokens at once is no faster than its total says."""
    lane = Lane("dspark")
    lane.begin()
    lane.tokens, lane.begun = 80, time.perf_counter() - 10
    assert 7.5 < float(lane.cells[1]) <= 8.0
    lane.tokens += 8  # a burst, this very moment
    assert 8.3 < float(lane.cells[1]) <= 8.8


@pytest.fixture
def watched(tmp_path: Path):
    """A slow race on a pseudo-terminal: the process, and a function that reads its screen up to a pattern."""
    leader, follower = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", WATCH, str(tmp_path / "race.json")],
        env=environment(TERM="xterm"),
        stdin=follower,
        stdout=subprocess.PIPE,
        stderr=follower,
        text=True,
    )
    os.close(follower)
    seen = ""

    def screen(until: str) -> str:
        nonlocal seen
        while not re.search(until, seen):
            seen += os.read(leader, 4096).decode(errors="replace")
        return seen

    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        stack.callback(os.close, leader)

        def close() -> None:
            stack.pop_all()
            os.close(leader)

        yield process, screen, close


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_a_signal_keeps_the_trials_and_gives_the_cursor_back_however_often_it_comes(
    watched, number: int, code: int, tmp_path: Path
) -> None:
    process, screen, _ = watched
    screen("answer [4-9] of")
    process.send_signal(number)
    assert process.stdout.readline() == "comparing\n"
    process.send_signal(signal.SIGINT)  # while the result is put together
    out = process.stdout.read()
    kept = re.search(r"^interrupted (\d+)$", out, re.MULTILINE)
    assert kept is not None and int(kept[1]) >= 3 and "chat (1 prompt)" in out
    assert process.wait() == code
    assert json.loads((tmp_path / "race.json").read_text())["interrupted"]
    seen = screen("\x1b\\[\\?25h")
    assert "\x1b[?25l" in seen and seen.rindex("\x1b[?25h") > seen.rindex("\x1b[?25l")


def test_a_terminal_that_leaves_does_not_take_the_race_along(watched, tmp_path: Path) -> None:
    process, screen, close = watched
    screen("answer [4-9] of")
    close()
    process.send_signal(signal.SIGHUP)
    process.stdout.read()
    assert process.wait() == 129
    assert json.loads((tmp_path / "race.json").read_text())["interrupted"]


def test_an_interrupt_while_the_answers_are_compared_keeps_the_race(watched, tmp_path: Path) -> None:
    process, _, _ = watched
    assert process.stdout.readline() == "comparing\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.read().endswith("interrupted 18\n") and process.wait() == 130
    assert len(json.loads((tmp_path / "race.json").read_text())["trials"]) == 18


def test_a_signal_that_was_ignored_stays_ignored_and_handlers_come_back() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            signal.raise_signal(signal.SIGHUP)
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            with pytest.raises(KeyboardInterrupt):
                interrupts.check()
        assert interrupts.received == signal.SIGTERM
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGHUP, before)


def test_an_interrupt_in_the_middle_of_the_display_gives_the_cursor_back() -> None:
    out = io.StringIO()
    live = LiveView(Console(file=out, force_terminal=True), runner(ScriptedDecoder()).entrants)

    def interrupt() -> None:
        raise KeyboardInterrupt

    live.__enter__()
    stop, live._live.stop = live._live.stop, interrupt  # type: ignore[method-assign]
    with pytest.raises(KeyboardInterrupt):
        live.__exit__()
    assert out.getvalue().endswith("\x1b[?25h")
    stop()


def test_one_export_that_fails_stops_neither_the_other_nor_the_tables(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert publish(hold(), Outputs(str(tmp_path / "gone" / "race.json"), str(tmp_path / "race.md"))) is False
    said = capsys.readouterr()
    assert "cannot write" in said.err and "identical: 12 answers" in said.out
    assert (tmp_path / "race.md").read_text().startswith("# Race of toy")


def test_a_reader_that_leaves_does_not_cost_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Closed(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError("gone")

    monkeypatch.setattr(sys, "stdout", Closed())
    with pytest.raises(OSError, match="gone"):
        publish(hold(), Outputs(str(tmp_path / "race.json"), "-"))
    assert json.loads((tmp_path / "race.json").read_text())["schema"] == 1


@pytest.fixture
def race(tmp_path: Path):
    """Starts a short race, with a cap for which no costs are measured, in a process of its own."""

    def start(*arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", "from dspark.commands.app import main; main()", "race"]
        return subprocess.Popen(
            [*command, "--arm", "lookup:cap=8", "--prompt", "Why do cats purr?", "--max-tokens", "6", *arguments],
            env=environment(LANG="C", COLUMNS="60"),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=tmp_path,
        )

    return start


@pytest.mark.real
def test_a_race_of_the_demo_pair_compares_every_arm_with_plain_decoding_and_with_itself(race) -> None:
    more = ("--arm", "dspark:cap=4", "--prompt", "Copy this: red, green, blue, red, green.")
    process = race("--precision", "fp32", "--trials", "2", "--json", "-", *more)
    out, err = process.communicate()
    document = json.loads(out)
    assert process.returncode == 0, err
    assert document["summary"]["verdict"] in ("identical", "tied")
    compared = {(check["arm"], check["against"]) for check in document["checks"]}
    assert compared == {
        ("baseline", "baseline"),
        ("lookup:cap=8", "lookup:cap=8"),
        ("dspark:cap=4", "dspark:cap=4"),
        ("lookup:cap=8", "baseline"),
        ("dspark:cap=4", "baseline"),
    }
    assert all(check["compared"] == check["length"] for check in document["checks"])
    assert set(document["summary"]["ratio"]["dspark:cap=4"]) == {"own", "overall"}
    assert document["stamp"]["mlx"] and len(document["trials"]) == 12
    assert {trial["statistics"]["cached_tokens"] for trial in document["trials"]} == {0}
    assert "demo pair" in err.splitlines()[0]


@pytest.fixture
def target(tmp_path: Path) -> tuple[str, ...]:
    """Flags that name a tiny target."""
    return "--model", str(write_llama(tmp_path / "target")), "--drafter", "none"


def test_ctrl_c_in_the_middle_prints_what_there_is_and_exits_130(race, target, tmp_path: Path) -> None:
    process = race(*target, "--trials", "5000", "--json", str(tmp_path / "race.json"))
    while not process.stderr.readline().startswith("trial 2"):
        assert process.poll() is None
    process.send_signal(signal.SIGINT)
    out, err = process.communicate()
    assert process.returncode == 130, err
    assert out.startswith("interrupted") and "own (1 prompt)" in out and "Traceback" not in err
    document = json.loads((tmp_path / "race.json").read_text())
    assert document["interrupted"] and 0 < len(document["trials"]) < 10000


def test_a_closed_stdout_ends_the_race_quietly(race, target) -> None:
    process = race(*target, "--trials", "1")
    process.stdout.close()
    err = process.stderr.read()
    assert process.wait() not in (0, 3)
    assert "Traceback" not in err and "Exception" not in err
