import random

import pytest

from azr.tasks.registry import KINDS
from tools.pretrain.corpus import CorpusConfig, make_document
from tools.pretrain.tokenizer import train_tokenizer


@pytest.fixture(scope="session")
def corpus_config():
    shares = dict.fromkeys(KINDS, 1.0)
    return CorpusConfig(solve=shares, propose=shares)


@pytest.fixture(scope="session")
def documents(corpus_config):
    rng = random.Random(0)
    return [make_document(rng, corpus_config) for _ in range(1000)]


@pytest.fixture(scope="session")
def compact_tokenizer(documents):
    return train_tokenizer((d.prompt + d.answer for d in documents), list(KINDS), vocab_size=640)
