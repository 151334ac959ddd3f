"""What counts as a difference between the outputs of two runs, and what is noise."""

from bench.outputs import Difference, beyond, differences, lines


def found(was: str, now: str, *plain: str) -> list[Difference]:
    """What differs beyond what further plain runs differ in."""
    base = lines(was)
    noise = [one for other in plain for one in differences(base, lines(other))]
    return beyond(differences(base, lines(now)), noise)


def test_the_same_output_has_no_differences() -> None:
    assert not found("epoch 1\nloss 0.5\n", "epoch 1\nloss 0.5\n")


def test_times_and_addresses_never_count() -> None:
    assert not found("3/3 - 2s - 12ms/step <at 0x7f01>", "3/3 - 0s - 9ms/step <at 0x7fff>")


def test_names_of_temporary_files_never_count() -> None:
    assert not found("saved to /tmp/tmpab12_xyz/m", "saved to /tmp/tmp99qwerty/m")


def test_a_number_that_differs_counts() -> None:
    assert found("loss 0.5", "loss 0.6")


def test_a_number_that_plain_runs_do_not_agree_on_is_noise() -> None:
    assert not found("loss 0.5 accuracy 0.1", "loss 0.6 accuracy 0.2", "loss 0.7 accuracy 0.1")


def test_a_whole_number_beside_noise_still_counts() -> None:
    assert found("epoch 1 loss 0.5", "epoch 2 loss 0.5", "epoch 1 loss 0.7")


def test_a_line_too_many_and_a_line_too_few_count() -> None:
    assert found("one\ntwo", "one\nhello\ntwo")
    assert found("one\ntwo", "one")


def test_lines_that_come_and_go_between_plain_runs_are_noise() -> None:
    assert not found("one\nretry\ntwo", "one\ntwo", "one\ntwo")


def test_lines_in_another_order_are_the_threads_doing() -> None:
    assert not found("a\nb\nc", "b\na\nc")


def test_what_a_terminal_overwrites_is_not_compared() -> None:
    assert lines("1/3\r2/3\r3/3 done\n") == lines("3/3 done\r\n")
    assert lines("1/3\x08\x08\x083/3 done\n") == lines("3/3 done\n")


def test_lines_of_the_log_that_imports_write_are_dropped() -> None:
    text = "2026-01-01 10:00:00.123456: I a.cc:1] loaded\nI0000 00:00:17.5   12 b.cc:2] here\n"
    assert [str(line) for line in lines(text, frozenset({"a.cc:1] loaded"}))] == ["b.cc: 2 ] here"]


def test_what_is_logged_when_the_interpreter_is_gone_is_left_out() -> None:
    log = (
        "W0000 00:00:1794936801.818847   28776 generator_dataset_op.cc:113] Error occurred when "
        "finalizing GeneratorDataset iterator: FAILED_PRECONDITION: Python interpreter state is "
        "not initialized. The process may be terminated.\n\t [[{{node PyFunc}}]]\n"
    )
    assert lines(f"before\n{log}after\n") == lines("before\nafter\n")
