// The engine's own grammar, for the tests that compare ours with it (bitnet-rs/tests/engine_grammar.rs). No program
// links this file: it lies in the shim's archive, and nothing but those tests refers to it.
#include "guarded.h"

#include "llama-grammar.h"

#include <cmath>
#include <memory>
#include <string>

// The engine keeps this type inside llama-sampling.cpp. Its layout is repeated here to reach the grammar
// pointer, which is null when the text did not parse; SHA256SUMS pins the file that defines it.
struct llama_sampler_grammar {
    const struct llama_vocab * vocab;
    std::string                grammar_str;
    std::string                grammar_root;
    struct llama_grammar *     grammar;
};

struct oracle_grammar {
    llama_sampler * sampler;

    llama_sampler_grammar * inner() const { return static_cast<llama_sampler_grammar *>(sampler->ctx); }
};

extern "C" {

// llama_sampler_init_grammar answers non-null without a grammar when the text is bad: that is an error here.
struct oracle_grammar * oracle_grammar_new(const struct llama_model * model, const char * text, const char * root, bn_status * st) {
    oracle_grammar * result = nullptr;
    guarded(st, [&] {
        std::unique_ptr<oracle_grammar> g(new oracle_grammar{llama_sampler_init_grammar(model, text, root)});
        if (g->sampler == nullptr) {
            return;
        }
        if (g->inner()->grammar == nullptr) {
            llama_sampler_free(g->sampler);
            set_status(st, BN_NULL, "the engine made a sampler without a grammar: the text did not parse");
            return;
        }
        result = g.release();
    });
    return not_null(result, st, "llama_sampler_init_grammar returned null");
}

void oracle_grammar_free(struct oracle_grammar * g) {
    if (g != nullptr) {
        llama_sampler_free(g->sampler);
        delete g;
    }
}

void oracle_grammar_apply(struct oracle_grammar * g, llama_token_data_array * candidates, bn_status * st) {
    guarded(st, [&] { llama_sampler_apply(g->sampler, candidates); });
}

void oracle_grammar_accept(struct oracle_grammar * g, llama_token token, bn_status * st) {
    guarded(st, [&] {
        // llama_grammar_accept_impl aborts on a token that the grammar forbids: ask first.
        llama_token_data       one       = {token, 0.0f, 0.0f};
        llama_token_data_array candidate = {&one, 1, -1, false};
        llama_sampler_apply(g->sampler, &candidate);
        if (std::isinf(one.logit)) {
            set_status(st, BN_MISUSE, "the grammar forbids this token here");
            return;
        }
        llama_sampler_accept(g->sampler, token);
    });
}

} // extern "C"
