/* Definitions of structures, as sources have them: what is read from one lies as the compiler said,
 * and nothing is read but what is there. The first line is the compiler's options. */
#include "runtime/structure.h"
#include "fuzz/fuzz.h"
#include "runtime/module.h"

FUZZ_TARGET(structure) {
    static const char described[] = "a: ?S/16/8, n: i32, b: ?ns::T/4/4, x: out f32*";
    struct gpu_signature *plain = NULL;
    struct gpu_error error = {0};
    char *text = strndup((const char *)bytes, byte_count); /* its end is known to the sanitizer */
    char *source = strchr(text, '\n');
    if (source != NULL) {
        *source++ = '\0';
    }
    FUZZ_CHECK(gpu_signature_parse(described, &plain, &error) == GPULUA_OK);
    struct gpu_signature *made = gpu_structures_signature(described, source != NULL ? source : text,
                                                          source != NULL ? text : NULL);
    if (made != NULL) {
        FUZZ_CHECK(made->args_bytes == plain->args_bytes &&
                   made->number_count == plain->number_count);
        uint32_t end = 0;
        for (uint32_t i = 0; i < made->param_count; i++) {
            const struct gpu_param *p = &made->params[i];
            FUZZ_CHECK(p->byte_offset >= end && p->byte_count > 0 &&
                       p->byte_offset >= p->whole_offset &&
                       p->byte_offset + p->byte_count <= p->whole_offset + p->whole_bytes);
            end = p->byte_offset + p->byte_count;
        }
        FUZZ_CHECK(made->param_count <= GPU_PARAMS_MAX && end <= made->args_bytes);
    }
    free(made);
    free(plain);
    free(text);
    return 0;
}
