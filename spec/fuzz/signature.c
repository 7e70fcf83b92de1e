/* Signatures of kernels, as scripts write them: what is taken apart lies within the arguments, and
 * says the same when it is put together again. */
#include "fuzz/fuzz.h"
#include "runtime/module.h"
#include "runtime/report.h"

static bool is_sound(const struct gpu_signature *signature) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *p = &signature->params[i];
        if (p->byte_offset < end || p->byte_count == 0 ||
            memchr(p->name, '\0', sizeof p->name) == NULL ||
            memchr(p->text, '\0', sizeof p->text) == NULL) {
            return false;
        }
        end = p->byte_offset + p->byte_count;
    }
    end += signature->has_context ? (uint32_t)sizeof(struct gpu_report_context) : 0;
    return signature->param_count <= GPU_PARAMS_MAX && end <= signature->args_bytes &&
           signature->args_bytes <= GPU_ARGS_BYTES_MAX;
}

/* As a script would write it. False: what only compilers say, and what was cut. */
static bool write_again(const struct gpu_signature *signature, char *to, size_t to_bytes) {
    size_t used = 0;
    to[0] = '\0';
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *p = &signature->params[i];
        if (p->kind == GPU_PARAM_UNSUPPORTED || strstr(p->name, "...") != NULL) {
            return false;
        }
        used += (size_t)snprintf(to + used, to_bytes - used, "%s%s%s%s", i > 0 ? "," : "", p->name,
                                 p->name[0] != '\0' ? ":" : "", p->text);
    }
    if (signature->has_context) {
        snprintf(to + used, to_bytes - used, "%sgpulua_ctx", used > 0 ? "," : "");
    }
    return true;
}

FUZZ_TARGET(signature) {
    struct gpu_signature *signature = NULL, *again = NULL;
    struct gpu_error error = {0};
    char *text = strndup((const char *)bytes, byte_count); /* its end is known to the sanitizer */
    gpulua_status status = gpu_signature_parse(text, &signature, &error);
    if (status == GPULUA_OK) {
        char written[GPU_PARAMS_MAX *
                     (sizeof signature->params[0].name + sizeof signature->params[0].text + 4u)];
        FUZZ_CHECK(is_sound(signature));
        if (write_again(signature, written, sizeof written)) {
            FUZZ_CHECK(gpu_signature_parse(written, &again, &error) == GPULUA_OK);
            FUZZ_CHECK(again->param_count == signature->param_count &&
                       again->args_bytes == signature->args_bytes &&
                       memcmp(again->params, signature->params,
                              signature->param_count * sizeof signature->params[0]) == 0);
        }
    } else {
        FUZZ_CHECK(status == GPULUA_INVALID_ARGUMENT || status == GPULUA_OUT_OF_MEMORY);
        FUZZ_CHECK(error.code == status && error.message[0] != '\0' && signature == NULL);
    }
    gpu_error_finish(&error);
    free(signature);
    free(again);
    free(text);
    return 0;
}
