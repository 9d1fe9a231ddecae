"""Models: networks as values, parameters in and logits out.

Start at `transformers_model.py`; `loading.py` opens models that others made.
"""
