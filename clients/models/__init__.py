"""Models: networks as values, parameters in and logits out.

Start at `transformers_model.py`, or copy `tiny_gpt.py`, the smallest. Models are registered under
the entry points `fedsim.models`. `loading.py` opens transformers folders, GGUF files and hub ids.
"""
