"""Models: functions of parameters and tokens that return logits (`fedsim/language_model.py`).

Start at `transformers_model.py`, or copy `tiny_gpt.py`, the smallest. For your own network, see
docs/how-to/own-model.md. Models are registered as entry points `fedsim.models`. Models that fedsim
pre-trains are also in `BUILT_IN` of fedsim/accounting/earlier_training.py. `loading.py` opens
transformers folders, GGUF files and hub ids.
"""

import logging

# Silenced: this logger warns in every run about missing kernels that fedsim does not call.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
