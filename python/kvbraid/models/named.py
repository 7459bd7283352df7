"""Architectures of full attention whose configs have field names of their own for sizes."""

from typing import Final

from kvbraid.models.config import ConfigReader, Default
from kvbraid.models.family import ATTENTION, Family
from kvbraid.models.patterns import FULL, Role, blocks_listed, every
from kvbraid.models.sizes import Attention


def divided(width: tuple[str, ...], heads: tuple[str, ...]) -> Default:
    """Return the size of a head: the model's width, divided among its heads."""

    def size(config: ConfigReader) -> int:
        whole, parts = config.size(*width), config.size(*heads)
        if whole % parts:
            raise config.wrong(width[0], whole, f"a multiple of its {parts} heads")
        return whole // parts

    return size


def dense(width: tuple[str, ...], heads: tuple[str, ...], kv_heads: tuple[str, ...]) -> Family:
    """All layers full; heads share the model's width."""
    return Family(
        pattern=every(FULL),
        sizes={Role.FULL: Attention(kv_heads=kv_heads)},
        fields="num_hidden_layers",
        defaults={"head_dim": divided(width, heads)},
    )


def falcon_heads(config: ConfigReader) -> int:
    """Return the heads with keys and values: one for all queries, except in newer decoders."""
    if config.find("new_decoder_architecture") is True:
        return config.size("num_kv_heads", "n_head_kv", *HEADS)
    return 1 if config.find("multi_query") is True else config.size(*HEADS)


def bigcode_heads(config: ConfigReader) -> int:
    """Return one head for all queries, unless the config says otherwise."""
    return config.size("n_head") if config.find("multi_query") is False else 1


def chatglm_heads(config: ConfigReader) -> int:
    """Return the groups of queries that share a head; by default each has a head of its own."""
    if config.find("multi_query_attention") is True:
        return config.size("multi_query_group_num")
    return config.size("num_attention_heads")


def heads_of_block(config: ConfigReader) -> int:
    """Return the heads of one block, which says how many queries share a head."""
    return config.size("num_attention_heads") // config.size(
        "block_configs.attention.n_heads_in_group"
    )


HEADS: Final = ("num_attention_heads", "n_head")
GPT: Final = dense(("n_embd", "hidden_size"), ("n_head",), ("n_head",))
BLOOM: Final = dense(("hidden_size", "n_embed"), HEADS, HEADS)
TELECHAT: Final = dense(("hidden_size",), ("n_head",), ("num_key_value_heads", "n_head"))
DBRX: Final = dense(("d_model",), ("n_heads",), ("attn_config.kv_n_heads",))


def counted(family: Family, kv_heads: Default) -> Family:
    """Return the same, with the number of heads computed from several fields."""
    return Family(
        pattern=family.pattern,
        sizes={Role.FULL: Attention(kv_heads=("kv_heads",))},
        fields=family.fields,
        defaults={**family.defaults, "kv_heads": kv_heads},
        per_layer=family.per_layer,
    )


FALCON: Final = counted(dense(("hidden_size",), HEADS, ()), falcon_heads)
BIGCODE: Final = counted(GPT, bigcode_heads)
CHATGLM: Final = counted(dense(("hidden_size",), ("num_attention_heads",), ()), chatglm_heads)
ONE_HEAD: Final = Family(
    pattern=every(FULL),
    sizes={Role.FULL: Attention(kv_heads=("num_attention_groups",))},
    fields="num_hidden_layers",
    defaults={"num_attention_groups": 1},
)
BLOCKS: Final = counted(
    Family(
        pattern=blocks_listed,
        sizes={Role.FULL: ATTENTION},
        fields="block_configs",
        defaults={"head_dim": divided(("hidden_size",), ("num_attention_heads",))},
        per_layer=("block_configs",),
    ),
    heads_of_block,
)
