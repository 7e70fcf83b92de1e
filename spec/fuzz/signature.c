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

static const struct gpu_part *write_part(char **to, const struct gpu_part *part,
                                         const struct gpu_param **param);

/* The name, if it is none that stands for a place, and what `part` is. */
static const struct gpu_part *write_named(char **to, const struct gpu_part *part,
                                          const struct gpu_param **param) {
    bool is_named = part->name[0] != '\0' && (part->name[0] < '0' || part->name[0] > '9');
    *to += sprintf(*to, "%s%s", is_named ? part->name : "", is_named ? ":" : "");
    return write_part(to, part, param);
}

/* Returns what is behind it. All elements of an array are read, and the last is written. */
static const struct gpu_part *write_part(char **to, const struct gpu_part *part,
                                         const struct gpu_param **param) {
    const struct gpu_part *opened = part++;
    char *start = *to;
    if (opened->kind == GPU_PART_VALUE) {
        *to += sprintf(*to, "%s", (*param)++->text);
        return part;
    }
    *to += sprintf(*to, "{");
    for (bool is_first = true; part->kind != GPU_PART_CLOSE; is_first = false) {
        *to = opened->length > 0 ? start : *to;
        *to += sprintf(*to, "%s", is_first || opened->length > 0 ? "" : ",");
        part = opened->length > 0 ? write_part(to, part, param) : write_named(to, part, param);
    }
    if (opened->text[0] != '\0') {
        *to = start + sprintf(start, "%s", opened->text);
    } else if (opened->length == 0) {
        *to += sprintf(*to, "}");
    } else { /* lengths of the array that it is an array of are behind its own */
        char behind[64];
        char *lengths = *to;
        while (lengths > start && strchr("0123456789[]", lengths[-1]) != NULL) {
            lengths--;
        }
        lengths += strcspn(lengths, "["); /* the digits of a type */
        snprintf(behind, sizeof behind, "%s", lengths);
        *to = lengths + sprintf(lengths, "[%u]%s", opened->length, behind);
    }
    return part + 1;
}

/* As a script would write it. False: what only compilers say, and what was cut. */
static bool write_again(const struct gpu_signature *signature, char *to) {
    const struct gpu_part *parts = gpu_signature_parts(signature), *part = parts;
    const struct gpu_param *param = signature->params;
    to[0] = '\0';
    for (uint32_t i = 0; i < signature->param_count; i++) {
        if (param[i].kind == GPU_PARAM_UNSUPPORTED || strstr(param[i].name, "...") != NULL) {
            return false;
        }
    }
    for (uint32_t i = 0; i < signature->part_count; i++) {
        if (strstr(parts[i].name, "...") != NULL) {
            return false;
        }
    }
    for (uint32_t i = 0; i < signature->param_count && signature->part_count == 0; i++) {
        to += sprintf(to, "%s%s%s%s", i > 0 ? "," : "", param[i].name,
                      param[i].name[0] != '\0' ? ":" : "", param[i].text);
    }
    while (part < parts + signature->part_count) {
        to += sprintf(to, "%s", part > parts ? "," : "");
        part = write_named(&to, part, &param);
    }
    if (signature->has_context) {
        sprintf(to, "%sgpulua_ctx", signature->param_count > 0 ? "," : "");
    }
    return true;
}

FUZZ_TARGET(signature) {
    struct gpu_signature *signature = NULL, *again = NULL;
    struct gpu_error error = {0};
    char *text = strndup((const char *)bytes, byte_count); /* its end is known to the sanitizer */
    gpulua_status status = gpu_signature_parse(text, &signature, &error);
    if (status == GPULUA_OK) {
        char *written = malloc(32 + signature->param_count * (sizeof *signature->params + 4u) +
                               signature->part_count * (sizeof(struct gpu_part) + 4u));
        FUZZ_CHECK(is_sound(signature));
        if (written != NULL && write_again(signature, written)) {
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
