#include "src/config/rows.h"

namespace llm {
namespace {

void guide_only(Rows<ModelSection>& rows) {
  rows.guide("attn_impl", Kind::text, "Attention of the guide's registry; there is one here.")
      .of({"mha", "flash_attn"})
      .without("mla", "multi-head latent attention is not in this version; write attn_impl: mha")
      .note("causal grouped-query attention on tiles is what every value means here");
  rows.guide("attn_sparse", Kind::text, "Sparse attention patterns of the guide's.")
      .never_but({Value{}}, "attention is dense and causal; remove the field");
  rows.guide("use_kv_cache", Kind::boolean, "Key and value cache for generation.")
      .never_but({Value{}, false}, "training never caches; remove the field")
      .note("training never caches keys and values");
  rows.guide("norm_first", Kind::boolean, "Normalisation before (true) or after a block's branch.")
      .never_but({Value{}, true}, "blocks normalise first; write norm_first: true")
      .note("blocks always normalise first");
  rows.guide("use_alibi", Kind::boolean, "Linear attention biases instead of positions.")
      .never_but({Value{}, false}, "write use_rope: true or pos_encoding_learned: true")
      .note("there are no linear attention biases here");
}

void mixture(Rows<ModelSection>& rows) {
  using M = ModelSection;
  rows.add(
          "mlp_impl", &M::mlp_impl,
          "One MLP for every token, or in every block a mixture of num_experts of them (moe), each "
          "of intermediate_size, of which a token visits top_k; no token is dropped.")
      .of({"mlp", "moe"});
  rows.add("num_experts", &M::num_experts, "Experts of each block's mixture.")
      .in(between(0, 1 << 16));
  rows.add(
          "top_k", &M::top_k,
          "Experts that a token visits, weighed by the softmax of their router logits; with 1 only "
          "the two losses below train the router.")
      .in(between(0, 1 << 16));
  rows.add("router_aux_loss_coef", &M::router_aux_loss_coef,
           "Weight of each mixture's load-balance loss, which is 1 for even probabilities. It is "
           "trained on; the printed loss is without it.")
      .in(between(0, 1000));
  rows.add("router_z_loss_coef", &M::router_z_loss_coef,
           "Weight of each mixture's z loss, which keeps router logits small.")
      .in(between(0, 1000));
}

}  // namespace

std::vector<Field> model_fields() {
  using M = ModelSection;
  Rows<M> rows("model", &Config::model);
  rows.add("hidden_size", &M::hidden_size,
           "Width of the residual stream (C); a multiple of num_heads.")
      .in(between(1, 1 << 20));
  rows.add("num_heads", &M::num_heads, "Query heads of each attention.").in(between(1, 1 << 20));
  rows.add("num_kv_heads", &M::num_kv_heads,
           "Key and value heads, each shared by num_heads / num_kv_heads query heads; null means "
           "num_heads.")
      .in(between(1, 1 << 20));
  rows.add("intermediate_size", &M::intermediate_size,
           "Width of the MLP, or of each expert (F); null means 4 x hidden_size.")
      .in(between(1, 1 << 24));
  rows.add("num_layers", &M::num_layers, "Decoder blocks.").in(between(1, 1 << 16));
  rows.add("dropout", &M::dropout,
           "Chance that an element is dropped: after the embedding, on attention weights, on the "
           "outputs of attention and MLP.")
      .in(from_below(0, 1));
  rows.add("use_glu", &M::use_glu,
           "Gated MLP, activation(gate x) * up x; with mlp_activation silu it is SwiGLU.");
  mixture(rows);
  rows.add("vocab_size", &M::vocab_size,
           "Rows of the embedding and of the head (V); at least the tokenizer's ids.")
      .in(between(1, (1LL << 31) - 1));
  rows.add("max_seq_len", &M::max_seq_len,
           "Longest sequence in tokens; data.max_seq_len may be shorter.")
      .in(between(1, 1 << 24));
  rows.add("norm_impl", &M::norm_impl, "Normalisation of blocks and output.")
      .of({"layer_norm", "rms_norm"});
  rows.add("norm_eps", &M::norm_eps, "Added to the variance in every normalisation.")
      .in({.min = 0, .max = 1, .min_open = true});
  rows.add("pos_encoding_learned", &M::pos_encoding_learned,
           "Learned positions; false and no use_rope means fixed sinusoidal ones.");
  rows.add("mlp_activation", &M::mlp_activation,
           "Activation of the MLP; gelu is the exact one, gelu_tanh GPT-2's approximation.")
      .of({"gelu", "gelu_tanh", "silu", "relu"})
      .reads("swish", "silu")
      .without("glu", "write use_glu: true with mlp_activation: silu")
      .without("leaky_relu", "write mlp_activation: relu or gelu");
  rows.add("qkv_bias", &M::qkv_bias, "Biases of the attention's projections.");
  rows.add("mlp_bias", &M::mlp_bias, "Biases of the MLP's projections.");
  rows.add("lm_head_bias", &M::lm_head_bias, "Bias of the output head.");
  rows.add("use_rope", &M::use_rope,
           "Rotary positions on queries and keys instead of added ones; needs an even head size.");
  rows.add("rope_theta", &M::rope_theta, "Base of the rotary frequencies.")
      .in({.min = 0, .max = 1e12, .min_open = true});
  rows.add("tie_embeddings", &M::tie_embeddings,
           "One matrix serves as the embedding and as the head.");
  rows.add("init_from", &M::init_from,
           "Folder of a Hugging Face GPT-2, Llama or Mixtral (config.json, model.safetensors) to "
           "start from; fields of the model that nothing else sets are its. null draws weights "
           "from training.seed.");
  guide_only(rows);
  return rows.take();
}

}  // namespace llm
