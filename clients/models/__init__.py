"""Models: networks as values, parameters in and logits out.

Start at `transformers_model.py`; `loading.py` opens transformers folders, GGUF files and hub ids.
"""
