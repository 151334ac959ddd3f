"""The batch size among a program's arguments."""

import pytest

from sublet.policy.batch_argument import read_batch


@pytest.mark.parametrize(
    "words",
    [
        "--batch-size 64",
        "--batch_size=64",
        "--batch 64",
        "-b 64",
        "-b64",
        "-bs 64",
        "--bs=64",
        "--batchSize 64",
        "--train-batch-size 64",
        "--per_device_batch_size=64",
        "data.batch_size=64",
        "batch_size=64",
    ],
)
def test_usual_spellings_name_the_batch_size(words: str) -> None:
    args = ("--epochs", "3", *words.split(), "out")
    batch, shape = read_batch(args)
    assert batch == 64
    assert read_batch(tuple(word.replace("64", "128") for word in args)) == (128, shape)
    assert read_batch(("--epochs", "4", *words.split(), "out"))[1] != shape


@pytest.mark.parametrize(
    "words",
    [
        "",
        "--epochs 64",
        "--batch-norm 64",
        "--batches 64",
        "--batch-size",
        "--batch-size auto",
        "--batch-size 0",
        "--batch-size=-1",
        "--batch-size 1e3",
        "--batch-size 12345678901",
        "-b x",
        "batch 64",
    ],
)
def test_what_names_none_is_left_as_it_is(words: str) -> None:
    args = tuple(words.split())
    assert read_batch(args) == (None, args)


def test_the_last_of_several_counts() -> None:
    assert read_batch(("-b", "8", "--batch-size=16"))[0] == 16
