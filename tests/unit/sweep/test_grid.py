"""The grid of configs: how values are split, what runs are called, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fedsim.cli.main import app
from fedsim.config import FedAvg, load_config
from fedsim.errors import ConfigError
from fedsim.sweep.cells import Variation, expand, parse_variation, run_name
from fedsim.sweep.compare import sweep
from fedsim.sweep.jobs import Job, Outcome, Outcomes
from fedsim.sweep.tuning import trials
from tests.helpers.commands import write_config


@pytest.fixture
def config(speeches: Path, tmp_path: Path) -> Path:
    return write_config(tmp_path / "uls.toml", speeches)


@pytest.mark.parametrize(
    ("listed", "values"),
    [
        ("2,8", ("2", "8")),
        (" 2 , 8.5 ", ("2", "8.5")),
        ("uls,els", ("uls", "els")),
        ("uls", ("uls",)),
        ('"a,b",c', ('"a,b"', "c")),
        ("'a,b',\"c\"", ("'a,b'", '"c"')),
        ("[1,2],[3]", ("[1,2]", "[3]")),
        (
            '{task="fedsgd"},{task="fedavg",epochs=2}',
            ('{task="fedsgd"}', '{task="fedavg",epochs=2}'),
        ),
        ("[[1,2],[3,4]],x", ("[[1,2],[3,4]]", "x")),
        (r"ln_|h\.[01],wte", (r"ln_|h\.[01]", "wte")),
        ("true,1", ("true", "1")),
        ('"",x', ('""', "x")),
    ],
)
def test_values_are_split_at_outer_commas(listed: str, values: tuple[str, ...]) -> None:
    assert parse_variation(f"a.b={listed}") == Variation("a.b", values)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("privacy.epsilon", "expected key.path=value,value"),
        ("=1,2", "expected key.path"),
        ("a..b=1", "expected key.path"),
        ("a=", "a value is missing"),
        ("a=1,,2", "a value is missing"),
    ],
)
def test_what_is_no_list_of_values_is_refused(text: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        parse_variation(text)


def test_the_grid_is_the_product_and_values_are_those_of_set(config: Path) -> None:
    tables = parse_variation('strategy.local={task="fedsgd"},{task="fedavg",epochs=2}')
    cells = expand(config, [parse_variation("seed=0,7"), tables], ["server.learning_rate=0.5"])
    assert [cell.name for cell in cells] == [
        "uls,seed=0,local=task=fedsgd",
        "uls,seed=0,local=task=fedavg,epochs=2",
        "uls,seed=7,local=task=fedsgd",
        "uls,seed=7,local=task=fedavg,epochs=2",
    ]
    assert [cell.config.seed for cell in cells] == [0, 0, 7, 7]
    assert cells[3].config.strategy.local == FedAvg(task="fedavg", epochs=2)
    assert {cell.config.server.learning_rate for cell in cells} == {0.5}
    assert [cell.name for cell in expand(config)] == ["uls"]


def test_a_comparison_is_seeded_and_a_run_secure_unless_the_config_says(config: Path) -> None:
    text = config.read_text(encoding="utf-8")
    config.write_text(text.replace('noise = "seeded"\n', ""), encoding="utf-8")
    assert load_config(config).privacy.noise == "secure"
    assert expand(config)[0].config.privacy.noise == "seeded"
    assert expand(config, (), ["privacy.noise=secure"])[0].config.privacy.noise == "secure"


def test_another_strategy_leaves_the_size_of_the_files_strategy_out(config: Path) -> None:
    cells = expand(config, [parse_variation("strategy.name=uls,els,non-private")])
    sizes = [(c.config.strategy.expected_users, c.config.strategy.expected_examples) for c in cells]
    assert sizes == [(6.0, None), (None, None), (6.0, None)]
    with pytest.raises(ConfigError, match=r"strategy\.cohort_size"):
        expand(config, [parse_variation("strategy.name=els")], ["strategy.cohort_size=6"])


@pytest.mark.parametrize(
    "unread",
    [
        "privacy.noise_multiplier=1,2",
        "privacy.delta=1e-3,1e-4",
        "strategy.clip.l2_clip_norm=0.5,1",
        "strategy.estimator={},{}",
    ],
)
def test_non_private_is_trained_once_for_all_values_that_it_does_not_read(
    config: Path, unread: str
) -> None:
    """And to the same bits whichever they are: the run is found again in a grid of others."""
    rates = parse_variation("server.learning_rate=0.1,0.2")
    grid = [parse_variation("strategy.name=uls,non-private"), parse_variation(unread), rates]
    cells = expand(config, grid)
    plain = [cell for cell in cells if cell.config.strategy.name == "non-private"]
    assert len(cells) == 4 + 2
    assert [cell.name for cell in plain] == [
        f"uls,name=non-private,learning_rate={rate}" for rate in ("0.1", "0.2")
    ]
    grid[1] = parse_variation(unread.partition(",")[0])
    assert [cell for cell in expand(config, grid) if cell in cells][1:] == [cells[1], *plain]
    tuned = [parse_variation("strategy.clip.l2_clip_norm=1,2", "--tune"), rates]
    assert [*trials(plain[0], tuned, config.parent)] == [("0.1",), ("0.2",)]
    assert len(trials(cells[0], tuned, config.parent)) == 4
    assert not trials(plain[0], tuned[:1], config.parent)


def test_keys_that_end_alike_are_named_in_full(config: Path) -> None:
    kinds = [parse_variation("strategy.clip.kind=flat"), parse_variation("data.cutting=split,join")]
    assert expand(config, kinds)[1].name == "uls,kind=flat,cutting=join"
    kinds.append(parse_variation("strategy.sampling.kind=poisson"))
    assert expand(config, kinds)[0].name == (
        "uls,strategy.clip.kind=flat,cutting=split,strategy.sampling.kind=poisson"
    )


@pytest.mark.parametrize(
    ("vary", "overrides", "complaint"),
    [
        (["seed=1", "seed=2"], [], "--vary seed: would override seed"),
        (["seed=1"], ["seed=2"], "--vary seed: would override seed"),
        (["server.learning_rate=1", "server={}"], [], "would override server.learning_rate"),
        (["strategy.cohort_siz=1"], [], "uls,cohort_siz=1: strategy.cohort_siz: unknown key; did"),
        (["privacy.epsilon=1"], [], "uls,epsilon=1: privacy: epsilon = 1.0 together with"),
        (["seed=1,many"], [], "uls,seed=many: seed = 'many'"),
    ],
)
def test_a_wrong_grid_is_found_before_anything_is_run(
    config: Path, tmp_path: Path, vary: list[str], overrides: list[str], complaint: str
) -> None:
    def never(jobs: Sequence[Job]) -> Outcomes:
        assert not jobs, "a run was begun"
        yield from ()

    with pytest.raises(ConfigError, match=complaint):
        sweep([config], tmp_path / "out", vary=vary, overrides=overrides, runner=never)
    assert not (tmp_path / "out").exists()


def test_names_that_fall_together_are_refused(config: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"two runs would share the folder .*name_or_path=a_b"):
        sweep([config], tmp_path / "out", vary=["model.name_or_path=a/b,a_b"])
    for sources, vary in (([config, config], []), ([config], ["seed=1,1"])):
        with pytest.raises(ConfigError, match="two runs would share the folder"):
            sweep(sources, tmp_path / "out", vary=vary)


def test_a_folder_of_another_run_is_found_before_anything_is_run(
    config: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "out" / "uls,seed=2"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(config.read_text(encoding="utf-8"), encoding="utf-8")
    with pytest.raises(ConfigError, match="seed = 2 and not 0: differs from the run"):
        sweep([config], tmp_path / "out", vary=["seed=1,2"])
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["uls,seed=2"]


texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=60)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(stem=texts, values=st.lists(texts, min_size=1, max_size=3))
def test_names_are_folders_inside_the_comparison(stem: str, values: list[str]) -> None:
    """Whatever is typed: one path component, visible, short enough for files called after it."""
    file = Path("x").with_name(stem.replace("/", "|").strip(".") + "n.toml")
    name = run_name(file, [(f"k{i}", value) for i, value in enumerate(values)])
    assert Path("out") / name == Path("out", *[name])
    assert (Path("/out") / name).resolve().parent == Path("/out")
    assert len(name.encode()) <= 160
    assert not name.startswith(".")
    assert not set(name) & set('/\\:*?"<>|\n\t\0')


@given(values=st.lists(st.integers(), min_size=1, max_size=4, unique=True), other=st.integers())
def test_names_of_different_numbers_differ(values: list[int], other: int) -> None:
    names = {run_name(Path("c.toml"), [("a", str(v)), ("b", str(other))]) for v in values}
    assert len(names) == len(values)


def test_long_names_stay_apart() -> None:
    long = "x" * 300
    names = {run_name(Path("c.toml"), [("a", long + end)]) for end in ("1", "2")}
    assert len(names) == 2
    assert all(name.startswith("c,a=xxx") and len(name) == 160 for name in names)


@pytest.mark.parametrize(
    "options",
    [
        ["--epsilon", "2", "4", "8"],
        ["--epsilon", "2", "--epsilon", "4", "8"],
        ["--epsilon=2", "4,8"],
        ["--epsilon", "2,4,8"],
        ["--vary", "privacy.epsilon=2,4,8"],
    ],
)
def test_epsilon_is_short_for_varying_it(
    options: list[str], config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Job] = []

    def note(jobs: list[Job]) -> Outcomes:
        for job in jobs:
            asked.append(job)
            yield Outcome(job.name, "failed", reason="only looked at")

    monkeypatch.setattr("fedsim.sweep.jobs.one_after_another", note)
    noise = ["--set", "privacy={delta=1e-3}"]
    arguments = ["compare", str(config), *noise, *options, "--out", str(tmp_path / "out")]
    assert app(arguments, standalone_mode=False) == 1
    assert [job.config.privacy.epsilon for job in asked] == [2.0, 4.0, 8.0]
    assert [job.name for job in asked] == ["uls,epsilon=2", "uls,epsilon=4", "uls,epsilon=8"]
