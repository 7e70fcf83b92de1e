/* Signatures of kernels, as scripts write them: what is taken apart lies within the arguments, and
 * says the same when it is put together again. */
#include "fuzz/fuzz.h"
#include "runtime/module.h"
#include "runtime/report.h"

/* What is opened is closed, and there is a value for each parameter. */
static bool are_sound(const struct gpu_part *parts, const struct gpu_signature *signature) {
    uint32_t depth = 0, value_count = 0;
    for (uint32_t i = 0; i < signature->part_count; i++) {
        if (memchr(parts[i].name, '\0', sizeof parts[i].name) == NULL ||
            memchr(parts[i].text, '\0', sizeof parts[i].text) == NULL ||
            (parts[i].kind == GPU_PART_CLOSE && depth == 0)) {
            return false;
        }
        depth += parts[i].kind == GPU_PART_OPEN;
        depth -= parts[i].kind == GPU_PART_CLOSE;
        value_count += parts[i].kind == GPU_PART_VALUE;
    }
    return depth == 0 && (signature->part_count == 0 || value_count == signature->param_count);
}

static bool is_sound(const struct gpu_signature *signature) {
    uint32_t end = 0;
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *p = &signature->params[i];
        if (p->byte_offset < end || p->byte_count == 0 || p->byte_offset < p->whole_offset ||
            p->byte_offset + p->byte_count > p->whole_offset + p->whole_bytes || p->number == 0 ||
            p->number > signature->number_count || memchr(p->name, '\0', sizeof p->name) == NULL ||
            memchr(p->text, '\0', sizeof p->text) == NULL) {
            return false;
        }
        end = p->byte_offset + p->byte_count;
    }
    end += signature->has_context ? (uint32_t)sizeof(struct gpu_report_context) : 0;
    return signature->param_count <= GPU_PARAMS_MAX && end <= signature->args_bytes &&
           signature->args_bytes <= GPU_ARGS_BYTES_MAX &&
           are_sound(gpu_signature_parts(signature), signature);
}

/* As a script would write it, malloc'ed. NULL: what only compilers say, and what was cut. */
static char *write_again(const struct gpu_signature *signature) {
    const struct gpu_part *parts = gpu_signature_parts(signature);
    for (uint32_t i = 0; i < signature->param_count; i++) {
        const struct gpu_param *param = &signature->params[i];
        if (param->kind == GPU_PARAM_UNSUPPORTED || strstr(param->name, "...") != NULL) {
            return NULL;
        }
    }
    for (uint32_t i = 0; i < signature->part_count; i++) {
        if (strstr(parts[i].name, "...") != NULL) {
            return NULL;
        }
    }
    static const char context[] = ", gpulua_ctx";
    size_t length = gpu_signature_write(signature, NULL, 0);
    char *text = malloc(length + sizeof context);
    if (text != NULL) {
        FUZZ_CHECK(gpu_signature_write(signature, text, length + 1) == length);
        FUZZ_CHECK(strlen(text) == length);
        if (signature->has_context) {
            strcpy(text + length, context + (length > 0 ? 0 : 2));
        }
    }
    return text;
}

FUZZ_TARGET(signature) {
    struct gpu_signature *signature = NULL, *again = NULL;
    struct gpu_error error = {0};
    char *text = strndup((const char *)bytes, byte_count); /* its end is known to the sanitizer */
    gpulua_status status = gpu_signature_parse(text, &signature, &error);
    if (status == GPULUA_OK) {
        FUZZ_CHECK(is_sound(signature));
        char *written = write_again(signature);
        if (written != NULL) {
            FUZZ_CHECK(gpu_signature_parse(written, &again, &error) == GPULUA_OK);
            FUZZ_CHECK(again->param_count == signature->param_count &&
                       again->args_bytes == signature->args_bytes &&
                       memcmp(again->params, signature->params,
                              signature->param_count * sizeof signature->params[0]) == 0 &&
                       again->part_count == signature->part_count &&
                       memcmp(gpu_signature_parts(again), gpu_signature_parts(signature),
                              signature->part_count * sizeof(struct gpu_part)) == 0);
        }
        free(written);
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
