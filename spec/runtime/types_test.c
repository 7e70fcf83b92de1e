/* Element types, and the 16-bit formats against two independent models: the value computed with
 * ldexp, and the nearest of all representable numbers. */
#include "runtime/types.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "backend/tap.h"

struct model {
    const char *name;
    int exponent_bits, fraction_bits;
    uint16_t (*from)(double);
    double (*to)(uint16_t);
};
static const struct model models[] = {
    {"f16", 5, 10, gpu_type_f16_from, gpu_type_f16_to},
    {"bf16", 8, 7, gpu_type_bf16_from, gpu_type_bf16_to},
};

static double model_value(const struct model *model, unsigned bits) {
    int exponent_max = (1 << model->exponent_bits) - 1;
    int exponent = (int)(bits >> model->fraction_bits) & exponent_max;
    int fraction = (int)(bits & ((1u << model->fraction_bits) - 1));
    double sign = bits & 0x8000 ? -1.0 : 1.0;
    if (exponent == exponent_max) {
        return fraction != 0 ? NAN : sign * INFINITY;
    }
    int leading = exponent != 0 ? 1 << model->fraction_bits : 0;
    int scale = (exponent != 0 ? exponent : 1) - exponent_max / 2 - model->fraction_bits;
    return sign * ldexp(leading + fraction, scale);
}

static bool same(double a, double b) {
    return (isnan(a) && isnan(b)) || (a == b && signbit(a) == signbit(b));
}

static void check(struct tap *tap, const struct model *model, bool good, const char *what) {
    char text[128];
    snprintf(text, sizeof text, "%s: %s", model->name, what);
    tap_check(tap, good, text);
}

static void test_patterns(struct tap *tap, const struct model *model) {
    unsigned wrong_to = 0;
    unsigned wrong_back = 0;
    for (unsigned bits = 0; bits < 0x10000; bits++) {
        double value = model->to((uint16_t)bits);
        wrong_to += !same(value, model_value(model, bits));
        unsigned back = model->from(value);
        if (isnan(value)) {
            /* Sign and payload stay; only the quiet bit may be added. */
            wrong_back += back != (bits | 1u << (model->fraction_bits - 1));
        } else {
            wrong_back += back != bits;
        }
    }
    check(tap, model, wrong_to == 0, "all 65,536 patterns to double");
    check(tap, model, wrong_back == 0, "all 65,536 patterns there and back");
}

/* Between every two neighbours: the tie goes to the even one, beside it to the nearer one, by as
 * little as one double. Rounding through float first would fail this. */
static void test_ties(struct tap *tap, const struct model *model) {
    unsigned infinity = ((1u << model->exponent_bits) - 1) << model->fraction_bits;
    unsigned wrong_tie = 0;
    unsigned wrong_beside = 0;
    unsigned wrong_sign = 0;
    double largest = model_value(model, infinity - 1);
    double step_at_top = largest - model_value(model, infinity - 2);
    for (unsigned bits = 0; bits < infinity; bits++) {
        double low = model_value(model, bits);
        double high = bits + 1 < infinity ? model_value(model, bits + 1) : largest + step_at_top;
        double middle = low + (high - low) / 2;
        unsigned even = bits & 1 ? bits + 1 : bits;
        wrong_tie += model->from(middle) != even;
        wrong_beside += model->from(nextafter(middle, 0.0)) != bits;
        wrong_beside += model->from(nextafter(middle, INFINITY)) != bits + 1;
        wrong_beside += model->from(nextafter(low, INFINITY)) != bits;
        wrong_beside += model->from(nextafter(high, 0.0)) != bits + 1;
        wrong_sign += model->from(-middle) != (even | 0x8000);
    }
    check(tap, model, wrong_tie == 0, "every tie goes to the even neighbour");
    check(tap, model, wrong_beside == 0, "one double beside a tie goes to the nearer neighbour");
    check(tap, model, wrong_sign == 0, "negative ties likewise");
}

static void test_edges(struct tap *tap, const struct model *model) {
    unsigned infinity = ((1u << model->exponent_bits) - 1) << model->fraction_bits;
    check(tap, model, model->from(DBL_MAX) == infinity, "overflow becomes infinity");
    check(tap, model, model->from(-DBL_MAX) == (infinity | 0x8000), "and keeps its sign");
    check(tap, model, model->from(INFINITY) == infinity, "infinity stays");
    check(tap, model, model->from(DBL_MIN) == 0, "underflow becomes zero");
    check(tap, model, model->from(-DBL_TRUE_MIN) == 0x8000, "and keeps its sign");
    check(tap, model, model->from(-0.0) == 0x8000, "negative zero stays");
    uint64_t bits = UINT64_C(0x7FF0000000000001); /* signalling, payload in the last bit only */
    double value;
    memcpy(&value, &bits, sizeof value);
    check(tap, model, isnan(model->to(model->from(value))), "NaN with a low payload stays NaN");
}

static void test_table(struct tap *tap) {
    static const struct {
        const char *name;
        uint32_t bytes;
        enum gpu_class class;
    } wanted[] = {
        {"i8", 1, GPU_CLASS_SIGNED},   {"u8", 1, GPU_CLASS_UNSIGNED},
        {"i16", 2, GPU_CLASS_SIGNED},  {"u16", 2, GPU_CLASS_UNSIGNED},
        {"i32", 4, GPU_CLASS_SIGNED},  {"u32", 4, GPU_CLASS_UNSIGNED},
        {"i64", 8, GPU_CLASS_SIGNED},  {"u64", 8, GPU_CLASS_UNSIGNED},
        {"f16", 2, GPU_CLASS_FLOAT},   {"bf16", 2, GPU_CLASS_FLOAT},
        {"f32", 4, GPU_CLASS_FLOAT},   {"f64", 8, GPU_CLASS_FLOAT},
        {"c64", 8, GPU_CLASS_COMPLEX}, {"c128", 16, GPU_CLASS_COMPLEX},
    };
    size_t count = sizeof wanted / sizeof wanted[0];
    bool is_right = count == GPU_TYPE_COUNT;
    for (size_t i = 0; i < count; i++) {
        enum gpu_type type = gpu_type_parse(wanted[i].name, strlen(wanted[i].name));
        is_right = is_right && type != GPU_TYPE_COUNT && gpu_type_bytes(type) == wanted[i].bytes &&
                   gpu_type_class(type) == wanted[i].class &&
                   strcmp(gpu_type_name(type), wanted[i].name) == 0;
    }
    tap_check(tap, is_right, "all fourteen types: name, bytes, class");
    tap_check(
        tap,
        gpu_type_parse("f3", 2) == GPU_TYPE_COUNT && gpu_type_parse("f322", 4) == GPU_TYPE_COUNT &&
            gpu_type_parse("F32", 3) == GPU_TYPE_COUNT && gpu_type_parse("", 0) == GPU_TYPE_COUNT,
        "other names are no types");
    tap_check(tap, gpu_type_parse("f32x4", 3) == GPU_TYPE_F32, "only `length` bytes are looked at");
}

int main(void) {
    struct tap tap = {0};
    test_table(&tap);
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        test_patterns(&tap, &models[i]);
        test_ties(&tap, &models[i]);
        test_edges(&tap, &models[i]);
    }
    return tap_finish(&tap);
}
