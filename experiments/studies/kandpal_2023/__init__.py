"""The study of Kandpal et al. 2023: user inference attacks."""
