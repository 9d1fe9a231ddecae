"""Models: functions of parameters and tokens that return logits (`fedsim/language_model.py`).

Start at `transformers_model.py`, or copy `tiny_gpt.py`, the smallest; a network of your own:
docs/how-to/own-model.md. Models are registered under the entry points `fedsim.models`; one that
fedsim pre-trains itself is in `BUILT_IN` of fedsim/accounting/earlier_training.py too. `loading.py`
opens transformers folders, GGUF files and hub ids.
"""

import logging

# It would say of each run that kernels were not found which fedsim does not call.
logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
