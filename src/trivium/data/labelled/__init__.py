"""Labelled examples for fine-tuning, from people's own files; plain or .gz, .xz, .zst.

Each kind of task has its example and its reader. An example knows its place (`where`), and the
text that `divide` keeps on one side (`group`). Every problem is one DataError with file and line.
"""

from __future__ import annotations

from trivium.data.labelled.conversations import Conversation, Message, read_conversations
from trivium.data.labelled.iob import are_chunk_tags, repair_iob
from trivium.data.labelled.labels import LabelKind, natural_order
from trivium.data.labelled.pairs import PairSource, SourceTarget, read_pairs
from trivium.data.labelled.questions import Answer, Question, num_moved, read_questions
from trivium.data.labelled.splitting import Example, divide
from trivium.data.labelled.tagged import TaggedSentence, read_tagged, tag_names
from trivium.data.labelled.texts import LabelledText, label_kind, label_names, read_texts

__all__ = [
    "Answer",
    "Conversation",
    "Example",
    "LabelKind",
    "LabelledText",
    "Message",
    "PairSource",
    "Question",
    "SourceTarget",
    "TaggedSentence",
    "are_chunk_tags",
    "divide",
    "label_kind",
    "label_names",
    "natural_order",
    "num_moved",
    "read_conversations",
    "read_pairs",
    "read_questions",
    "read_tagged",
    "read_texts",
    "repair_iob",
    "tag_names",
]
