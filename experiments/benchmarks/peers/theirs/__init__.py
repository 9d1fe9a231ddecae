"""Code for the peers' environment: it imports torch, pfl and Opacus, not fedsim."""
