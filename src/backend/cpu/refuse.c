/* The token pass: what is not supported (see rewrite.h). */
#include <stdio.h>
#include <stdlib.h>

#include "backend/cpu/rewrite_pass.h"

void gpu_cpu_refuse(struct rewrite *r, size_t at, const char *what, const char *why) {
    const struct cpu_token *token = token_at(r, at);
    char *longer = NULL;
    int length =
        asprintf(&longer, "%s%s:%u: error: '%s': %s\n", r->refusals != NULL ? r->refusals : "",
                 r->tokens.files[token->file], token->line, what, why);
    if (length < 0) {
        r->tokens.failed = true;
        return;
    }
    free(r->refusals);
    r->refusals = longer;
}

#define UNSUPPORTED " is not supported on the CPU device"

static const struct {
    const char *name; /* with a * at the end: a prefix */
    const char *why;
} refused[] = {
    {"asm", "inline PTX"},
    {"__asm", "inline PTX"},
    {"__asm__", "inline PTX"},
    {"cooperative_groups", "cooperative groups"},
    {"cudaTextureObject_t", "a texture"},
    {"cudaSurfaceObject_t", "a surface"},
    {"tex1D*", "a texture"},
    {"tex2D*", "a texture"},
    {"tex3D*", "a texture"},
    {"texCubemap*", "a texture"},
    {"surf1D*", "a surface"},
    {"surf2D*", "a surface"},
    {"surf3D*", "a surface"},
    {"surfCubemap*", "a surface"},
    {"nvcuda", "a tensor core operation"},
    {"cudaLaunchDevice*", "dynamic parallelism"},
    {"cudaDeviceSynchronize", "dynamic parallelism"},
    {"cudaGetParameterBuffer*", "dynamic parallelism"},
    {"__pipeline_*", "an asynchronous copy"},
    {"__cluster_*", "an operation of thread block clusters"},
    {"__cvta_*", "an address of one memory space"},
    {"__nvvm_*", "an NVVM intrinsic"},
    {"__nv_*", "a libdevice function"},
};

static const char *const not_refused[] = {"__nv_pure__", "__cluster_dims__", NULL};

void gpu_cpu_construct_check(struct rewrite *r, size_t at) {
    const struct cpu_token *token = token_at(r, at);
    if (gpu_cpu_token_is(token, "<<<")) {
        gpu_cpu_refuse(r, at, "<<<", "dynamic parallelism" UNSUPPORTED);
        return;
    }
    if (token->kind != CPU_TOKEN_WORD || is_member(r, at)) {
        return;
    }
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t length = strcspn(refused[i].name, "*");
        bool is_prefix = refused[i].name[length] == '*';
        if (token->length >= length && memcmp(token->text, refused[i].name, length) == 0 &&
            (is_prefix || token->length == length) && strncmp(token->text, "__nv_bf", 7) != 0 &&
            strncmp(token->text, "__nv_half", 9) != 0 && !word_in(token, not_refused)) {
            gpu_cpu_refuse(r, at, r->tokens.words[token->word - 1],
                           gpu_cpu_tokens_note(&r->tokens, "%s" UNSUPPORTED, refused[i].why));
            return;
        }
    }
}

/* What a launch could not pass, or take back. */
static void signature_check(struct rewrite *r, const struct cpu_function *kernel) {
    static const char *const values[] = {"int",    "float", "double",   "bool", "char",
                                         "size_t", "long",  "unsigned", NULL};
    for (size_t i = kernel->name - 1; i > kernel->begin && !is_at(r, i, ">"); i--) {
        size_t partner = token_at(r, i)->partner;
        if (is_at(r, i, ")") && partner > kernel->begin && partner < i) {
            i = partner;
        } else if (word_in(token_at(r, i), values)) {
            gpu_cpu_refuse(r, i, kernel->qualified, "a kernel returns nothing, it is void");
            break;
        }
    }
    bool is_value = false; /* by default */
    int angles = 0;
    for (size_t i = kernel->params_open + 1; i < kernel->params_close; i++) {
        angles += is_at(r, i, "<") ? 1 : is_at(r, i, ">") && angles > 0 ? -1 : 0;
        is_value = is_at(r, i, "=") || (is_value && !(is_at(r, i, ",") && angles == 0));
        bool is_apart = is_at(r, i, "[") || is_at(r, i, "{") || /* values; another function's */
                        (is_at(r, i, "(") && !is_at(r, i + 1, "&"));
        if (is_apart && token_at(r, i)->partner > i) {
            i = token_at(r, i)->partner;
        } else if (!is_value && angles == 0 && (is_at(r, i, "&") || is_at(r, i, "&&"))) {
            gpu_cpu_refuse(r, i, kernel->qualified, "a kernel's parameter cannot be a reference");
        }
    }
}

/* NVRTC compiles for the device only, and so do we: what is not marked for it belongs to a host. */
void gpu_cpu_annotations_check(struct rewrite *r) {
    for (size_t i = 0; i < r->found.function_count; i++) {
        const struct cpu_function *f = &r->found.functions[i];
        if (f->is_kernel && !f->is_template && !f->is_instantiation) {
            signature_check(r, f);
        }
        bool is_marked = f->is_for_device || f->is_trivial || f->is_instantiation;
        for (size_t k = 0; !is_marked && k < r->found.function_count; k++) {
            is_marked = r->found.functions[k].is_for_device &&
                        strcmp(r->found.functions[k].qualified, f->qualified) == 0;
        }
        if (!is_marked) {
            gpu_cpu_refuse(
                r, f->name, f->qualified,
                "a function without __device__ belongs to the host and cannot be compiled");
        }
    }
    for (size_t i = 0; i < r->found.variable_count; i++) {
        const struct cpu_variable *v = &r->found.variables[i];
        if (!v->is_for_device) {
            gpu_cpu_refuse(r, v->name, v->qualified,
                           "a variable without __device__ or __constant__ belongs to the host");
        }
    }
}
