"""ε of a dozen settings, as `fedsim account` printed them before the redesign of November 2026."""

from __future__ import annotations

import shlex

import pytest

from tests.helpers.commands import fedsim_json

FROZEN = {
    "uls --rounds 150 --sampling-probability 0.02 --noise-multiplier 1.1": 1.59748033,
    "uls --rounds 100 --users 2000 --cohort-size 64 --noise-multiplier 0.8": 4.63762301,
    "uls --rounds 150 --sampling-probability 0.02 --noise-multiplier 1.1"
    " --accountant rdp": 1.93846516,
    "uls --rounds 100 --sampling-probability 0.01 --noise-multiplier 1.0"
    " --accountant moments": 1.90510502,
    "uls --rounds 60 --sampling-probability 0.05 --noise-multiplier 2"
    " --relation replace-one": 1.72806815,
    "uls --rounds 60 --sampling-probability 0.05 --noise-multiplier 2"
    " --relation zero-out-one": 1.00036331,
    "uls --sampler truncated-poisson --rounds 300 --users 1000 --cohort-size 10"
    " --max-cohort-size 14 --noise-multiplier 1.0": 6.73245170,
    "uls --sampler fixed-size --rounds 60 --users 1000 --cohort-size 50"
    " --noise-multiplier 2": 5.87380439,
    "uls --sampler balanced --rounds 60 --participations 3 --noise-multiplier 1.5": 1.30373495,
    "uls --sampler cyclic --rounds 60 --users 1000 --cohort-size 50 --groups 5"
    " --noise-multiplier 2": 2.55238363,
    "els --rounds 2000 --group-size 4 --sampling-probability 0.01"
    " --noise-multiplier 1.0": 14.53609266,
    "els --rounds 200 --group-size 8 --sampling-probability 0.02 --noise-multiplier 4"
    " --relation fixed-graph": 2.73957476,
    "els --rounds 200 --group-size 4 --sampling-probability 0.01 --noise-multiplier 4"
    " --accountant group-privacy": 0.60892096,
}


@pytest.mark.parametrize(("setting", "frozen"), FROZEN.items(), ids=lambda each: str(each)[:60])
def test_epsilon_is_as_it_was(setting: str, frozen: float) -> None:
    found = fedsim_json("account", *shlex.split(setting), "--delta", "1e-6")
    assert found["epsilon"] == pytest.approx(frozen, rel=1e-6)
