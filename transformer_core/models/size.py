"""How large a model is, from its sizes alone."""

from transformer_core.presets import TransformerSize


def parameters_by_part(size: TransformerSize, vocab_size: int) -> dict[str, int]:
    """Trainable parameters of each part of a Transformer with one shared embedding matrix (paper 3.4).

    Attention projections carry no bias; the feed-forward network does (paper eq. 2); each layer norm has a gain and a bias.
    """
    attention = size.d_model * size.heads * 2 * (size.d_k + size.d_v)
    feed_forward = 2 * size.d_model * size.d_ff + size.d_ff + size.d_model
    norm = 2 * size.d_model
    return {
        "embedding": vocab_size * size.d_model,
        "encoder_attention": size.layers * attention,
        "encoder_feed_forward": size.layers * feed_forward,
        "encoder_norm": size.layers * 2 * norm,
        "decoder_attention": size.layers * 2 * attention,
        "decoder_feed_forward": size.layers * feed_forward,
        "decoder_norm": size.layers * 3 * norm,
    }
