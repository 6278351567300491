"""Attention and packed KV cache for models of the `transformers` library.

    from mpfa.integrations.transformers import MpfaCache, register
    register()
    model = AutoModelForCausalLM.from_pretrained(name, attn_implementation="mpfa")
    cache = MpfaCache(model.config, recipe="mxfp4")  # or with layer_recipes={0: "bf16", -1: "bf16"}
    model.generate(**inputs, cache=cache)

A layer's `update` runs before the attention function, which alone sees the queries. So `update` only
parks the new keys and values on the layer and tags the key tensor with it; the attention function
appends and attends in the packed cache. Nothing is ever unpacked as a whole. Layers with a sliding
window keep all tokens; the window is applied when they are read.

Assisted decoding and prompt lookup drop rejected drafts from the packed cache; beam search forks its
sequences, which share pages until they differ. Drafts appended together with the prompt count in means
that a recipe takes from the first append.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, get_layer_types_and_kwargs

import mpfa
from mpfa.integrations.transformers_layer import NAME, MpfaLayer, StaticMeans

__all__ = ["MpfaCache", "MpfaLayer", "StaticMeans", "mpfa_attention", "mpfa_mask", "register"]
SUPPORTED_LAYER_TYPES = frozenset({"full_attention", "sliding_attention"})


LayerRecipes = Mapping[int, str] | Sequence[str | None] | Callable[[int], str | None]


def _recipes_of_layers(default: str, chosen: LayerRecipes | None, layers: int) -> list[str]:
    """One recipe per layer; an unknown one fails here and not in the first forward pass."""
    if chosen is None:
        picked: list[str | None] = [None] * layers
    elif isinstance(chosen, Mapping):
        picked = [None] * layers
        for index, recipe in chosen.items():
            if isinstance(index, bool) or not isinstance(index, int) or not -layers <= index < layers:
                raise mpfa.MpfaError(
                    f"MpfaCache: layer_recipes names layer {index!r}; indices are in {-layers}..{layers - 1}"
                )
            if picked[index] is not None:
                raise mpfa.MpfaError(f"MpfaCache: layer_recipes names layer {index % layers} twice; keep one of them")
            picked[index] = recipe
    elif callable(chosen):
        picked = [chosen(index) for index in range(layers)]
    elif isinstance(chosen, Sequence) and not isinstance(chosen, str):
        if len(chosen) != layers:
            raise mpfa.MpfaError(
                f"MpfaCache: layer_recipes has {len(chosen)} entries but the model has {layers} layers; give one each, "
                "None for the recipe of the others"
            )
        picked = list(chosen)
    else:
        raise mpfa.MpfaError(
            f"MpfaCache: layer_recipes is a {type(chosen).__name__}; a mapping from layer to recipe, one recipe per "
            "layer, or a function of the layer is needed"
        )
    recipes = [default if recipe is None else recipe for recipe in picked]
    for index, recipe in enumerate(recipes):
        try:
            mpfa.recipe_text(recipe)
        except mpfa.MpfaError as error:
            raise mpfa.MpfaError(f"MpfaCache: layer {index}: {error}") from None
    return recipes


class MpfaCache(Cache):
    """KV cache of a whole model that keeps every layer packed in the format of a recipe.

    recipe         of all layers but those that `layer_recipes` names
    layer_recipes  recipes of single layers: {index: recipe} (negative indices count from the last layer), one recipe
                   or None per layer, or a function of the index; None stands for `recipe`
    static_means   one entry (or None) per layer, for layers whose recipe has centre=static
    """

    def __init__(
        self,
        config,
        recipe: str = "mxfp4",
        *,
        layer_recipes: LayerRecipes | None = None,
        static_means: Sequence[StaticMeans | None] | None = None,
        page_size: int = 64,
    ) -> None:
        text_config = config.get_text_config(decoder=True)
        layer_types, _ = get_layer_types_and_kwargs(text_config)
        unsupported = sorted(set(layer_types) - SUPPORTED_LAYER_TYPES)
        if unsupported:
            raise mpfa.MpfaError(
                f"MpfaCache: layers of type {', '.join(unsupported)} are not supported; "
                f"supported are {', '.join(sorted(SUPPORTED_LAYER_TYPES))}"
            )
        if static_means is not None and len(static_means) != len(layer_types):
            raise mpfa.MpfaError(
                f"MpfaCache: static_means has {len(static_means)} entries but the model has {len(layer_types)} layers"
            )
        recipes = _recipes_of_layers(recipe, layer_recipes, len(layer_types))
        means = static_means or [None] * len(layer_types)
        layers = [MpfaLayer(r, means=m, page_size=page_size) for r, m in zip(recipes, means)]
        super().__init__(layers=layers)
        self.recipe = recipe

    @property
    def recipes(self) -> list[str]:
        """The recipe of every layer."""
        return [layer.recipe for layer in self.layers]

    @property
    def bytes_per_token(self) -> float:
        """Exact bytes that one token occupies, over all layers and KV heads."""
        return sum(layer.packed.bytes_per_token for layer in self.layers if layer.packed is not None)

    @property
    def memory_bytes(self) -> int:
        """Bytes allocated now, over all layers."""
        return sum(layer.packed.memory_bytes for layer in self.layers if layer.packed is not None)

    @property
    def counters(self) -> Mapping[str, int]:
        """Quantiser counters (saturated, flushed, nonfinite), summed over the layers."""
        total = {"saturated": 0, "flushed": 0, "nonfinite": 0}
        for layer in self.layers:
            if layer.packed is not None:
                for name, count in layer.packed.counters.items():
                    total[name] = total.get(name, 0) + int(count)
        return total

    def seal(self) -> None:
        """End the 16-bit phase of every layer; needed only when decode steps have several tokens."""
        for layer in self.layers:
            layer.seal()


def mpfa_attention(
    module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    **kwargs,
) -> tuple[torch.Tensor, None]:
    """The attention function of the name "mpfa"; query [b, q_heads, s, d] -> ([b, s, q_heads, d_v], None)."""
    layer = getattr(key, "mpfa_layer", None)
    if layer is None:
        raise mpfa.MpfaError(
            f"attn_implementation='{NAME}' needs a packed cache: pass cache=MpfaCache(model.config, recipe=...) "
            "and leave use_cache on"
        )
    if attention_mask is not None:
        raise mpfa.MpfaError(
            f"attn_implementation='{NAME}' takes no mask tensor (shape {tuple(attention_mask.shape)} given); "
            "only causal and sliding-window masks of equally long sequences are supported"
        )
    if dropout:
        raise mpfa.MpfaError(f"attn_implementation='{NAME}' has no dropout; call model.eval() first")
    if torch.is_grad_enabled() and query.requires_grad:
        raise mpfa.MpfaError(
            f"attn_implementation='{NAME}' is for inference: a packed cache has no gradient; "
            "run the model under torch.no_grad() or torch.inference_mode()"
        )
    if kwargs.get("output_attentions"):
        raise mpfa.MpfaError(f"attn_implementation='{NAME}' never forms the attention weights; drop output_attentions")
    if not getattr(module, "is_causal", True):
        raise mpfa.MpfaError(f"attn_implementation='{NAME}' supports causal attention only")
    window = (-1, -1) if sliding_window is None else (sliding_window - 1, 0)
    return layer.attend(query, scaling, window, softcap or 0.0, s_aux), None


def mpfa_mask(batch_size, q_length, kv_length, attention_mask=None, use_vmap=False, **kwargs) -> None:
    """The mask function of the name "mpfa": always None, since the kernel builds causal and window masks.

    `attention_mask` is the 2-D padding mask [b, kv_length]; `use_vmap` says that a model overlays
    masks of its own (image blocks, bidirectional spans).
    """
    if attention_mask is not None and not bool(attention_mask.all()):
        raise mpfa.MpfaError(
            f"attn_implementation='{NAME}' does not support padded batches: the attention mask has zeros; "
            "give sequences of equal length, or run them one by one"
        )
    if use_vmap or not kwargs.get("allow_is_causal_skip", True):
        raise mpfa.MpfaError(
            f"attn_implementation='{NAME}' does not support packed sequences or masks beyond causal and sliding window"
        )


def register() -> None:
    """Make attn_implementation="mpfa" known to `transformers`; calling it again is harmless."""
    AttentionInterface.register(NAME, mpfa_attention)
    AttentionMaskInterface.register(NAME, mpfa_mask)
