"""Several processes tokenise: the same store, and no process left over."""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from fedsim.data.building import build as build_module
from fedsim.data.building import workers
from fedsim.data.building.tokenise import BatchTokeniser, Cutting, TokenisedBatch
from fedsim.data.building.workers import tokenise_batches
from fedsim.errors import ConfigError
from tests.unit.data.data_samples import build, encode

RECORDS: list[tuple[str | None, str | None]] = [
    (None if index % 11 == 0 else f"user {index * 7 % 5}", "" if index % 13 == 0 else "x" * index)
    for index in range(60)
]
BATCHES = [RECORDS[start : start + 4] for start in range(0, 60, 4)]


def encode_without_torch(texts: Sequence[str]) -> list[list[int]]:
    return [[1 + ("torch" in sys.modules), os.getpid() % 1000] for _ in texts]


def encode_and_die(texts: Sequence[str]) -> list[list[int]]:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


def encode_and_print(texts: Sequence[str]) -> list[list[int]]:
    os.write(1, b"a library that talks")
    return encode(texts)


@pytest.mark.parametrize("cutting", ["split", "truncate", "join"])
def test_the_store_is_the_same_whatever_the_number_of_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cutting: Cutting
) -> None:
    monkeypatch.setattr(build_module, "_BATCH_TEXTS", 4)
    stores = [
        build(RECORDS, tmp_path / f"{number}", num_workers=number, cutting=cutting)
        for number in (0, 1, 3)
    ]
    for path in stores[0].path.iterdir():
        for other in stores[1:]:
            assert (other.path / path.name).read_bytes() == path.read_bytes()


def _run(encode: object, num_workers: int | None) -> list[TokenisedBatch]:
    settings = BatchTokeniser(encode, 1000, 8, "split")  # type: ignore[arg-type]
    return list(tokenise_batches(iter(BATCHES), settings, num_workers))


def test_the_work_is_done_elsewhere_without_torch() -> None:
    arrived = _run(encode_without_torch, 2)
    ids = [ids for one in arrived for ids in one.ids.reshape(-1, 2).tolist()]
    assert {torch for torch, _ in ids} == {1}
    processes = {process for _, process in ids}
    assert os.getpid() % 1000 not in processes
    assert 1 <= len(processes) <= 2


def test_little_work_is_done_here(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(BATCHES) < workers._ALONE
    assert {one.ids[1] for one in _run(encode_without_torch, None)} == {os.getpid() % 1000}
    monkeypatch.setattr(workers, "_ALONE", 2)
    monkeypatch.setattr(workers, "default_workers", lambda: 1)
    where = [int(one.ids[1]) for one in _run(encode_without_torch, None)]
    assert where[0] == where[1] == os.getpid() % 1000 != where[2] == where[-1]


def test_what_cannot_be_sent_is_done_here() -> None:
    here = threading.get_ident()
    arrived = _run(lambda texts: [[1, here % 7] for _ in texts], 2)
    assert arrived[0].ids[1] == here % 7


def encode_nothing(texts: Sequence[str]) -> list[list[int]]:
    raise ConfigError("data.messages_column = 'm': refused")


@pytest.mark.parametrize("num_workers", [0, 1])
def test_wrong_input_is_the_same_error_from_elsewhere(num_workers: int) -> None:
    with pytest.raises(ConfigError, match=r"^data\.messages_column = 'm': refused$"):
        _run(encode_nothing, num_workers)


def test_a_process_that_dies_is_an_error_and_not_a_wait() -> None:
    with pytest.raises(RuntimeError, match="a tokenising process ended with status -9"):
        _run(encode_and_die, 2)


def test_what_a_library_prints_is_no_answer(capfd: pytest.CaptureFixture[str]) -> None:
    assert _run(encode_and_print, 1)[1].ids.size
    assert "a library that talks" in capfd.readouterr().err


def test_a_reader_that_stops_leaves_no_process_behind() -> None:
    settings = BatchTokeniser(encode_without_torch, 1000, 8, "split")
    results = tokenise_batches(iter(BATCHES), settings, 1)
    process = int(next(results).ids[1])
    results.close()  # type: ignore[attr-defined]
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    if children.exists():
        assert process not in {int(child) % 1000 for child in children.read_text().split()}
