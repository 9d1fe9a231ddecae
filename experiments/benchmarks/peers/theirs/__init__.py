"""What runs in the peers' environment: it knows torch, pfl and Opacus, and nothing of fedsim."""
