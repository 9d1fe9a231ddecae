"""Studies of McMahan et al. 2018: DP-FedAvg."""
