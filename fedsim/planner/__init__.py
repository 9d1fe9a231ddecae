"""Before training: which strategy, which group size and cohort, and what the noise will be."""
