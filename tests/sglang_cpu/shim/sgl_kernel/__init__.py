"""The kernels that SGLang 0.5.23 calls to serve a Llama target with an EAGLE-3 chain on a CPU, in plain torch.

SGLang's own build of them is a CUDA library. These stand in for it in tests: attention and the bookkeeping around
drafts happen here, all else (HTTP, scheduling, the EAGLE worker, counters) is SGLang's. Names and argument orders
are the ones that SGLang calls. Only topk 1 is served, so a draft is a chain and never a branching tree; what lies
outside raises. `convert_weight_packed` is left undefined on purpose: SGLang then takes the plain path in every
layer.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

__version__ = "0.0.0+test"

NO_TOKEN = -1


def _spans(starts: Tensor, ends: Tensor) -> Iterator[tuple[int, int, slice]]:
    """For each request: where its span starts and ends, and its place when all spans are laid end to end."""
    place = 0
    for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
        yield start, end, slice(place, place + end - start)
        place += end - start


# Where keys and values are kept: `req_to_token[request, position]` is a slot of the cache.


def assign_req_to_token_pool_cpu(
    requests: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, _pool_length: int
) -> None:
    """Write each request's new slots into its row, positions start to end."""
    for request, (start, end, place) in zip(requests.tolist(), _spans(starts, ends), strict=True):
        req_to_token[request, start:end] = slots[place].to(req_to_token.dtype)


def assign_extend_cache_locs_cpu(
    requests: Tensor, req_to_token: Tensor, starts: Tensor, ends: Tensor, slots: Tensor, _pool_length: int
) -> None:
    """Read each request's slots, positions start to end, into `slots`, one request after the other."""
    for request, (start, end, place) in zip(requests.tolist(), _spans(starts, ends), strict=True):
        slots[place] = req_to_token[request, start:end].to(slots.dtype)


def assign_draft_cache_locs_contiguous_cpu(
    requests: Tensor, req_to_token: Tensor, lengths: Tensor, slots: Tensor, pool_length: int, topk: int, steps: int
) -> None:
    """Read the slots that follow each request's text, one for every token to be drafted."""
    assign_extend_cache_locs_cpu(requests, req_to_token, lengths, lengths + topk * steps, slots, pool_length)


def build_draft_decode_metadata_cpu(
    req_to_token: Tensor, requests: Tensor, _lengths: Tensor, topk: int, _steps: int, _pool_length: int
) -> Tensor:
    """One row of slots per drafted chain: with topk 1 the request's own row, which the draft goes on writing."""
    _require_chain(topk)
    return req_to_token[requests].contiguous()


def copy_all_layer_kv_cache_cpu(addresses: Tensor, slot_bytes: Tensor, to: Tensor, source: Tensor) -> None:
    """In every cache, given by address and bytes per slot, copy slots `source` to slots `to`."""
    for address, size in zip(addresses.tolist(), slot_bytes.tolist(), strict=True):
        taken = [ctypes.string_at(address + slot * size, size) for slot in source.tolist()]
        for slot, content in zip(to.tolist(), taken, strict=True):
            ctypes.memmove(address + slot * size, content, size)


# Drafts and their verification. A verify step checks `width` = num_steps + 1 tokens per request, the first of
# which is the last token kept before.


def build_tree_kernel_efficient_cpu(
    _parents: Tensor,
    _selected: Tensor,
    lengths: Tensor,
    mask: Tensor,
    positions: Tensor,
    node: Tensor,
    next_node: Tensor,
    sibling: Tensor,
    topk: int,
    _depth: int,
    width: int,
    mask_mode: int,
) -> None:
    """Describe the drafts as a tree in which every node has one child: the next token of the chain."""
    _require_chain(topk)
    if mask_mode != 1:
        raise NotImplementedError("the test kernels know the mask among drafted tokens only")
    requests = lengths.numel()
    places = torch.arange(width)
    node.view(requests, width).copy_(torch.arange(requests * width).view(requests, width))
    next_node.view(requests, width).copy_((places + 1).where(places < width - 1, NO_TOKEN))
    sibling.fill_(NO_TOKEN)
    positions.view(requests, width).copy_(lengths.view(-1, 1) + places)
    seen = torch.ones(width, width, dtype=torch.bool).tril()
    mask.view(-1)[: requests * width * width] = seen.repeat(requests, 1, 1).flatten().to(mask.dtype)


def verify_tree_greedy_cpu(
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,  # noqa: ARG001 - the child of a node, in a chain the next one
    retrive_next_sibling: Tensor,  # noqa: ARG001 - none in a chain
    target_predict: Tensor,
) -> None:
    """Accept drafts while each equals the target's choice at the token before it.

    `candidates` [requests, width] are the last kept token and the drafts, `target_predict` the target's choice
    after each. Fills `predicts` at the accepted nodes, `accept_index` [requests, num_steps + 1] with those nodes
    (else -1) and `accept_token_num` with the number of accepted drafts, the target's own token not counted.
    """
    requests, width = candidates.shape
    choice = target_predict.view(requests, width)
    node = retrive_index.view(requests, width)
    agrees = candidates[:, 1:] == choice[:, :-1].to(candidates.dtype)
    count = agrees.int().cumprod(dim=1).sum(dim=1)
    accept_token_num.copy_(count)
    accept_index.fill_(NO_TOKEN)
    for request, drafts in enumerate(count.tolist()):
        kept = node[request, : drafts + 1]
        accept_index[request, : drafts + 1] = kept.to(accept_index.dtype)
        predicts[kept] = choice[request, : drafts + 1].to(predicts.dtype)


def fill_bonus_tokens_cpu(tokens: Tensor, lengths: Tensor, bonus: Tensor, width: int) -> None:
    """Take the last kept token of each request's row of `width`: the one the target itself produced."""
    rows = torch.arange(lengths.numel()) * width
    bonus[: lengths.numel()] = tokens.flatten()[rows + lengths - 1].to(bonus.dtype)


def fill_accept_out_cache_loc_cpu(kept_index: Tensor, slots: Tensor, kept_slots: Tensor) -> None:
    """Pack the slots of the kept tokens to the front."""
    nodes = kept_index[kept_index != NO_TOKEN].long()
    kept_slots.flatten()[: nodes.numel()] = slots[nodes].to(kept_slots.dtype)


def rotate_input_ids_cpu(*_: object) -> None:
    """Belongs to drafts of several layers, which EAGLE-3 heads are not."""
    raise NotImplementedError("the test kernels serve EAGLE-3 heads only")


def _require_chain(topk: int) -> None:
    if topk != 1:
        raise NotImplementedError("the test kernels serve chains (topk 1) only")


# Attention. Shapes: queries [tokens, heads, size], caches [slots, key_value_heads, size].


def _attend(query: Tensor, key: Tensor, value: Tensor, scale: float, first_position: int) -> Tensor:
    """Causal attention of the tokens at first_position, first_position + 1, ... over all of `key`; in fp32."""
    seen = torch.arange(key.shape[0]) <= torch.arange(query.shape[0]).unsqueeze(1) + first_position
    heads_first = [tensor.transpose(0, 1).unsqueeze(0).float() for tensor in (query, key, value)]
    out = scaled_dot_product_attention(*heads_first, attn_mask=seen, scale=scale, enable_gqa=True)
    return out.squeeze(0).transpose(0, 1)


def _require_plain(is_cross: bool, cap: float, window: int, *absent: object) -> None:
    if is_cross or cap > 0 or window > 0 or any(thing is not None for thing in absent):
        raise NotImplementedError("the test kernels know plain causal attention only")


def _decode_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    _key_scale: float,
    _value_scale: float,
    out: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    slots: Tensor,
    _logits: Tensor,
    req_to_token: Tensor,
    requests: Tensor,
    lengths: Tensor,
    scale: float,
    cap: float,
    is_cross: bool,
    window: int,
    _encoder_lengths: Tensor | None,
    sinks: Tensor | None,
) -> None:
    _require_plain(is_cross, cap, window, sinks)
    if key is not None and value is not None:
        key_cache[slots] = key.view(-1, *key_cache.shape[1:]).to(key_cache.dtype)
        value_cache[slots] = value.view(-1, *value_cache.shape[1:]).to(value_cache.dtype)
    for row, (request, length) in enumerate(zip(requests.tolist(), lengths.tolist(), strict=True)):
        held = req_to_token[request, :length].long()
        attended = _attend(query[row : row + 1], key_cache[held], value_cache[held], scale, length - 1)
        out[row] = attended[0].to(out.dtype)


def _extend_attention(
    query: Tensor,
    _key: Tensor | None,
    _value: Tensor | None,
    out: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    _key_scale: float,
    _value_scale: float,
    req_to_token: Tensor,
    requests: Tensor,
    lengths: Tensor,
    extend_lengths: Tensor,
    extend_starts: Tensor,
    _longest: int,
    scale: float,
    cap: float,
    is_cross: bool,
    window: int,
    _encoder_lengths: Tensor | None,
    sinks: Tensor | None,
    tree_mask: Tensor | None,
    is_causal: bool,
) -> None:
    # SGLang has already written the new keys and values to the cache.
    _require_plain(is_cross or not is_causal, cap, window, sinks, tree_mask)
    for request, length, count, start in zip(
        requests.tolist(), lengths.tolist(), extend_lengths.tolist(), extend_starts.tolist(), strict=True
    ):
        held = req_to_token[request, :length].long()
        new = slice(start, start + count)
        attended = _attend(query[new], key_cache[held], value_cache[held], scale, length - count)
        out[new] = attended.to(out.dtype)


_CACHES = "Tensor(a!) k_buffer, Tensor(b!) v_buffer, float k_scale, float v_scale"
_KINDS = "float sm_scale, float logit_cap, bool is_cross, int sliding_window, Tensor? encoder_lens, Tensor? sinks"
_library = torch.library.Library("sgl_kernel", "FRAGMENT")
_library.define(
    f"decode_attention_cpu(Tensor q, {_CACHES}, Tensor(c!) o, Tensor? key, Tensor? value, Tensor loc, "
    f"Tensor attn_logits, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, {_KINDS}) -> ()"
)
_library.define(
    "extend_attention_cpu(Tensor q, Tensor? k, Tensor? v, Tensor(c!) o, "
    f"{_CACHES}, Tensor req_to_token, Tensor req_pool_indices, Tensor seq_lens, Tensor extend_seq_lens, "
    f"Tensor extend_start_loc, int max_len_extend, {_KINDS}, Tensor? tree_mask, bool is_causal) -> ()"
)
_library.impl("decode_attention_cpu", _decode_attention, "CPU")
_library.impl("extend_attention_cpu", _extend_attention, "CPU")
