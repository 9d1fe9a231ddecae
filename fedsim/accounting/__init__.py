"""What a run costs: from one round's mechanism to (ε, δ) for every user.

`events` says what a round is, `accountants` turn rounds into ε or δ, `calibration` finds the
noise for a promised ε, `ledger` remembers what was released, `statement` says it in words.
"""
