"""Studies of McMahan et al. 2018: DP-FedAvg, and the moments accountant of its tables."""
