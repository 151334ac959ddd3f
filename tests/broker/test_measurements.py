"""What earlier runs have shown, in a real ledger."""

from pathlib import Path

from msgspec.structs import replace

from sublet.broker.ledger import Ledger
from sublet.broker.measurements import PROBE, fingerprint
from sublet.domain.history import Forecast, Point
from sublet.domain.job import Job, Outcome
from sublet.policy.sizing import Evidence
from sublet.units import MiB
from support.jobs import job
from support.ledgers import reopened


def _sum(ledger: Ledger, one: Job, kind: str) -> Evidence:
    """The facts, without what the policy makes of them."""
    known = ledger.measurements.evidence(one, kind)
    return replace(known, margin=None, basis="", enough=0, at_least=0)


def _ran(
    ledger: Ledger,
    one: Job,
    peak: int | None,
    ceiling: int = 512,
    system: int | None = None,
    exceeded: bool = False,
    kind: str = "cpu",
    start: str = "warm",
    code: int = 0,
) -> None:
    outcome = Outcome(
        "lease exceeded" if exceeded else "exited",
        code or int(exceeded),
        peak=None if peak is None else peak * MiB,
        system_peak=None if system is None else system * MiB,
    )
    ledger.measurements.remember(one, kind, ceiling * MiB, outcome, start, 1.0)
    ledger.commit()


def test_a_program_that_never_ran_has_no_evidence(ledger: Ledger) -> None:
    assert _sum(ledger, job(), "cpu") == Evidence()
    assert ledger.measurements.usual_outside("cpu", "warm") is None


def test_evidence_is_the_largest_peak_of_the_latest_runs(ledger: Ledger) -> None:
    for peak in (900, 100, 200, 300, 150, 120):
        _ran(ledger, job(), peak, system=peak + 50)
    assert _sum(ledger, job(), "cpu") == Evidence(300 * MiB, 5, True, 50 * MiB, 0)


def test_evidence_survives_a_restart(ledger: Ledger) -> None:
    _ran(ledger, job(), 100)
    again = reopened(ledger)
    assert again.measurements.evidence(job(), "cpu").peak == 100 * MiB
    again.close()


def test_runs_with_the_same_arguments_count_and_others_only_where_they_agree(
    ledger: Ledger,
) -> None:
    _ran(ledger, job(args=(b"--small",)), 100)
    _ran(ledger, job(args=(b"--large",)), 900)
    small = _sum(ledger, job(args=(b"--small",)), "cpu")
    assert small == Evidence(100 * MiB, 1, True)
    new = ledger.measurements.evidence(job(args=(b"--new",)), "cpu")
    assert (new.peak, new.at_least) == (None, 900 * MiB)
    for seed in range(5):
        _ran(ledger, job(args=(b"--seed", b"%d" % seed)), 900)
    assert _sum(ledger, job(args=(b"--new",)), "cpu") == Evidence(900 * MiB, 5, False)


def test_other_programs_and_other_kinds_of_device_show_nothing(ledger: Ledger) -> None:
    _ran(ledger, job(), 100)
    assert ledger.measurements.evidence(job(), "gpu").peak is None
    assert ledger.measurements.evidence(job(script=b"/home/someone/other.py"), "cpu").peak is None


def test_a_ceiling_that_failed_counts_until_a_larger_one_was_enough(
    ledger: Ledger,
) -> None:
    _ran(ledger, job(), 500, ceiling=512, exceeded=True)
    _ran(ledger, job(), 250, ceiling=256, exceeded=True)
    assert ledger.measurements.evidence(job(), "cpu").failed_at == 512 * MiB
    # It may have failed before it came to what needs the memory.
    _ran(ledger, job(), 20, ceiling=768, code=1)
    assert ledger.measurements.evidence(job(), "cpu").failed_at == 512 * MiB
    _ran(ledger, job(), 600, ceiling=768)
    known = ledger.measurements.evidence(job(), "cpu")
    assert (known.failed_at, known.enough) == (0, 768 * MiB)
    _ran(ledger, job(), 760, ceiling=768, exceeded=True)
    assert ledger.measurements.evidence(job(), "cpu").failed_at == 768 * MiB


def test_the_peak_of_a_run_that_was_cut_off_at_its_ceiling_is_no_evidence_of_its_need(
    ledger: Ledger,
) -> None:
    _ran(ledger, job(), 300)
    _ran(ledger, job(), 500, ceiling=512, exceeded=True)
    assert _sum(ledger, job(), "cpu") == Evidence(300 * MiB, 1, failed_at=512 * MiB)


def test_the_peaks_of_runs_that_failed_are_lower_bounds(ledger: Ledger) -> None:
    _ran(ledger, job(), 90, code=1)
    _ran(ledger, job(), 70, code=1)
    known = ledger.measurements.evidence(job(), "cpu")
    assert (known.peak, known.at_least) == (None, 90 * MiB)
    _ran(ledger, job(), 80)
    known = ledger.measurements.evidence(job(), "cpu")
    assert (known.peak, known.at_least) == (80 * MiB, 90 * MiB)


def test_a_run_that_never_started_tensorflow_shows_only_what_its_process_cost(
    ledger: Ledger,
) -> None:
    _ran(ledger, job(), None, system=40)
    assert _sum(ledger, job(), "cpu") == Evidence(outside=40 * MiB, idle=True)


def test_what_a_process_costs_beside_its_pool_is_never_negative(ledger: Ledger) -> None:
    _ran(ledger, job(), 200, system=150)
    assert ledger.measurements.evidence(job(), "cpu").outside == 0
    assert ledger.measurements.usual_outside("cpu", "warm") == 0


def test_a_run_that_died_before_it_touched_its_pool_says_nothing_of_what_lies_beside(
    ledger: Ledger,
) -> None:
    _ran(ledger, job(), 64, ceiling=64, system=60, exceeded=True)
    assert ledger.measurements.evidence(job(), "cpu").outside is None
    assert ledger.measurements.usual_outside("cpu", "warm") is None


def test_what_a_process_usually_costs_is_the_upper_quartile_of_its_kind(ledger: Ledger) -> None:
    for outside in (10, 20, 30, 40, 50, 60, 70, 80):
        _ran(ledger, job(script=b"/%d.py" % outside), 100, system=100 + outside)
    _ran(ledger, job(), 100, system=900, start="cold")
    _ran(ledger, job(), 100, system=800, kind="gpu")
    _ran(ledger, job(), 100)
    assert ledger.measurements.usual_outside("cpu", "warm") == 70 * MiB
    assert ledger.measurements.usual_outside("cpu", "cold") == 800 * MiB


def test_what_a_process_usually_costs_follows_the_latest_runs(ledger: Ledger) -> None:
    for _ in range(20):
        _ran(ledger, job(), 100, system=600)
    for _ in range(20):
        _ran(ledger, job(), 100, system=200)
    assert ledger.measurements.usual_outside("cpu", "warm") == 100 * MiB


def test_a_script_is_the_same_program_by_whatever_path_it_was_named() -> None:
    whole = job(script=b"/home/someone/train.py", cwd=b"/")
    from_there = job(script=b"train.py", cwd=b"/home/someone")
    elsewhere = job(script=b"train.py", cwd=b"/home/other")
    assert fingerprint(whole.spec) == fingerprint(from_there.spec)
    assert fingerprint(whole.spec) != fingerprint(elsewhere.spec)


def test_arguments_are_told_apart_word_by_word() -> None:
    assert fingerprint(job(args=(b"a b",)).spec) != fingerprint(job(args=(b"a", b"b")).spec)
    assert fingerprint(job(args=(b"a", b"b")).spec) == fingerprint(job(args=(b"a", b"b")).spec)


def test_programs_and_arguments_that_are_no_text_have_evidence_too(ledger: Ledger) -> None:
    one = job(script=b"/caf\xe9.py", args=(b"\xff", b"b"))
    _ran(ledger, one, 100)
    assert _sum(ledger, one, "cpu") == Evidence(100 * MiB, 1, True)


def test_runs_that_differ_in_the_batch_size_are_seen_as_such(ledger: Ledger) -> None:
    for batch, peak in ((32, 132), (64, 164), (128, 228)):
        _ran(ledger, job(args=(b"--batch-size", b"%d" % batch, b"--lr", b"1")), peak)
    _ran(ledger, job(args=(b"--batch-size", b"32", b"--lr", b"2")), 900)
    history = ledger.measurements.history(job(args=(b"--batch-size", b"96", b"--lr", b"1")), "cpu")
    assert history.batch == 96
    assert [(run.likeness, run.batch) for run in history.runs] == [
        ("other", 32),
        ("batch", 128),
        ("batch", 64),
        ("batch", 32),
    ]
    known = ledger.measurements.evidence(job(args=(b"--batch-size", b"96", b"--lr", b"1")), "cpu")
    assert known.peak == 196 * MiB


def test_a_script_that_was_edited_is_not_sized_by_what_it_was(
    ledger: Ledger, tmp_path: Path
) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    one = job(1, script=bytes(script))
    _ran(ledger, one, 100)
    assert not ledger.measurements.history(job(2, script=bytes(script)), "cpu").runs[0].edited
    script.write_text("print(2)")
    assert ledger.measurements.history(job(3, script=bytes(script)), "cpu").runs[0].edited
    edited = ledger.measurements.evidence(job(3, script=bytes(script)), "cpu")
    same = ledger.measurements.evidence(job(2, script=bytes(script)), "cpu")
    assert (same.peak, edited.peak, edited.at_least) == (100 * MiB, None, 100 * MiB)


def test_a_job_is_known_by_the_script_it_was_submitted_with(ledger: Ledger, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print(1)")
    one = job(1, script=bytes(script))
    ledger.measurements.evidence(one, "cpu")
    script.write_text("print(2)")
    _ran(ledger, one, 100)
    assert ledger.measurements.history(job(2, script=bytes(script)), "cpu").runs[0].edited


def test_news_is_seen_at_once_though_evidence_is_remembered(ledger: Ledger) -> None:
    assert ledger.measurements.evidence(job(), "cpu").runs == 0
    _ran(ledger, job(), 100)
    assert ledger.measurements.evidence(job(), "cpu").runs == 1


def test_what_had_not_ended_is_no_part_of_what_a_lease_rested_on(ledger: Ledger) -> None:
    _ran(ledger, job(), 100)
    assert len(ledger.measurements.history(job(), "cpu", before=2.0).runs) == 1
    assert ledger.measurements.history(job(), "cpu", before=0.5).runs == ()


FORECAST = Forecast(100 * MiB, 80 * MiB, 120 * MiB, (Point(0.5, 60 * MiB),), "short runs", 1.0)


def test_a_forecast_is_kept_replaced_and_found_after_a_restart(ledger: Ledger) -> None:
    ledger.measurements.keep_forecast(job().spec, "cpu", replace(FORECAST, high=MiB))
    ledger.measurements.keep_forecast(job().spec, "cpu", FORECAST)
    ledger.commit()
    again = reopened(ledger)
    assert again.measurements.history(job(), "cpu").forecast == FORECAST
    assert again.measurements.history(job(), "gpu").forecast is None
    assert again.measurements.evidence(job(), "cpu").peak == 120 * MiB
    again.close()


def test_a_run_of_a_probe_is_no_run_of_the_program(ledger: Ledger) -> None:
    spec = job().spec
    environ = {**spec.surroundings.environ, PROBE: b"{}"}
    probing = replace(
        job(), spec=replace(spec, surroundings=replace(spec.surroundings, environ=environ))
    )
    _ran(ledger, probing, 7)
    assert ledger.measurements.history(job(), "cpu").runs == ()
    _ran(ledger, job(), 100)
    assert ledger.measurements.evidence(probing, "cpu") == Evidence()


def test_measurements_of_either_schema_can_be_put_back(ledger: Ledger) -> None:
    old = ("script:/a.py", "", "cpu", "warm", 1.0, 512 * MiB, 90 * MiB, None, 0, 1)
    ledger.measurements.restore_peaks([old])
    ledger.measurements.restore_peaks([(*old[:6], 95 * MiB, *old[7:], 3, "", None, "")])
    ledger.commit()
    runs = ledger.measurements.history(job(script=b"/a.py"), "cpu").runs
    assert [run.peak for run in runs] == [95 * MiB, 90 * MiB]
