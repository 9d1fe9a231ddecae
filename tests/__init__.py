"""Tests: `unit` mirrors the source, `end_to_end` calls the commands.

`contracts` has a suite for each interface (accountants, clips, engines, grids, layer rules) with a
row for each implementation; `privacy` tests what the guarantee rests on, and plants bugs;
`mutation` takes protections away one at a time and names the tests that see it; `robustness` kills
processes, fills disks and damages files; `attacks`, `golden` (values of other
implementations), `third_party` (a package installed beside fedsim). What they share is in
`helpers`, `samples` and `conftest.py`.
"""
