"""The families of Hugging Face that are read and written, one file each.

To add one of known parts: a file with its `Family` (start from that of its nearest kin, as
`mistral.py` does from `llama.py`), and its name here. The tests of parity find its classes by
themselves; they need its small sizes in `tests/interop/hf_models.py`.
"""

from __future__ import annotations

from trivium.interop.families.albert import ALBERT
from trivium.interop.families.bart import BART
from trivium.interop.families.bert import BERT
from trivium.interop.families.electra import ELECTRA
from trivium.interop.families.gpt1 import GPT1
from trivium.interop.families.gpt2 import GPT2
from trivium.interop.families.llama import LLAMA
from trivium.interop.families.marian import MARIAN
from trivium.interop.families.mistral import MISTRAL
from trivium.interop.families.modernbert import MODERNBERT
from trivium.interop.families.opt import OPT
from trivium.interop.families.roberta import ROBERTA
from trivium.interop.families.t5 import T5
from trivium.interop.family import Family

_ALL = (
    *(BERT, ROBERTA, ALBERT, ELECTRA, MODERNBERT),
    *(GPT1, GPT2, OPT, LLAMA, MISTRAL),
    *(T5, BART, MARIAN),
)

FAMILIES: dict[str, Family] = {family.model_type: family for family in _ALL}
"""`model_type` -> family. A spec that several can express is exported as the first."""
