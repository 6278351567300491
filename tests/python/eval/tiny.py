"""A tiny random Llama with a word-level tokenizer, saved like a user's model folder."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

WORDS = [f"w{i}" for i in range(62)]


def save_tiny_model(folder: Path) -> None:
    """Two layers, 4:2 heads of 32; weights large enough that attention matters."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        initializer_range=0.08,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    vocabulary = {"<unk>": 0, "<eos>": 1, **{word: i + 2 for i, word in enumerate(WORDS)}}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>").save_pretrained(folder)


def random_words(count: int) -> str:
    """`count` words of the vocabulary, deterministic."""
    picks = torch.randint(0, len(WORDS), (count,), generator=torch.Generator().manual_seed(1))
    return " ".join(WORDS[i] for i in picks)
