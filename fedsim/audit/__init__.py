"""Lower bounds on ε: what an attacker who saw the releases can be shown to have learnt."""
