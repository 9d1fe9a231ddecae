"""fedsim: language-model training with user-level differential privacy, simulated right."""
