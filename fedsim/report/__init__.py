"""Reports: what a run says about itself, and several runs side by side."""
