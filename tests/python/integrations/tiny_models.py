"""Models of random weights, small enough to run in milliseconds."""

import transformers


def tiny_llama(initializer_range: float = 0.08):
    config = transformers.LlamaConfig(
        vocab_size=97,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        initializer_range=initializer_range,
        eos_token_id=None,
    )
    return transformers.LlamaForCausalLM(config)


def tiny_gemma4(initializer_range: float = 0.08):
    """Layers with different head dims: 32 under the sliding window, 64 in full attention."""
    config = transformers.Gemma4TextConfig(
        vocab_size=97,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=32,
        global_head_dim=64,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention", "full_attention"],
        hidden_size_per_layer_input=0,
        vocab_size_per_layer_input=97,
        initializer_range=initializer_range,
        eos_token_id=None,
    )
    return transformers.Gemma4ForCausalLM(config)


def tiny_gemma3(initializer_range: float = 0.08):
    config = transformers.Gemma3TextConfig(
        vocab_size=97,
        hidden_size=128,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=64,
        query_pre_attn_scalar=64,
        sliding_window=8,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"],
        initializer_range=initializer_range,
        eos_token_id=None,
    )
    return transformers.Gemma3ForCausalLM(config)
