/* Element types and the conversions of the two 16-bit floating-point formats.
 *
 * Both formats are converted from double in one step: going through float would round twice, and
 * values just beside a tie would end on the wrong side. */
#include "runtime/types.h"

#include <assert.h>
#include <string.h>

#define DOUBLE_FRACTION_BITS 52
#define DOUBLE_EXPONENT_MAX 0x7FF
#define DOUBLE_BIAS 1023

struct type_facts {
    const char *name;
    size_t name_bytes;
    uint32_t bytes;
    enum gpu_class class;
};

static const struct type_facts facts[GPU_TYPE_COUNT] = {
#define X(name, text, bytes, class) [GPU_TYPE_##name] = {text, sizeof text - 1, bytes, class},
    GPU_TYPE_TABLE(X)
#undef X
};

/* A 16-bit format: sign, exponent_bits, fraction_bits. */
struct format {
    int exponent_bits;
    int fraction_bits;
};
static const struct format binary16 = {5, 10};
static const struct format bfloat16 = {8, 7};

static uint16_t narrow(double value, struct format format) {
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t sign = (uint32_t)(bits >> 63) << 15;
    int exponent = (int)((bits >> DOUBLE_FRACTION_BITS) & DOUBLE_EXPONENT_MAX);
    uint64_t fraction = bits & ((UINT64_C(1) << DOUBLE_FRACTION_BITS) - 1);
    int exponent_max = (1 << format.exponent_bits) - 1;
    uint32_t infinity = (uint32_t)exponent_max << format.fraction_bits;
    int shift = DOUBLE_FRACTION_BITS - format.fraction_bits;

    if (exponent == DOUBLE_EXPONENT_MAX && fraction != 0) {
        /* Quiet, so that a payload whose upper bits are zero does not become an infinity. */
        uint32_t quiet = 1u << (format.fraction_bits - 1);
        return (uint16_t)(sign | infinity | quiet | (uint32_t)(fraction >> shift));
    }
    if (exponent == 0) {
        return (uint16_t)sign; /* zero, or a subnormal double: far below half of our smallest */
    }
    int narrowed = exponent - DOUBLE_BIAS + exponent_max / 2;
    if (narrowed >= exponent_max) {
        return (uint16_t)(sign | infinity);
    }
    uint64_t significand = fraction | (UINT64_C(1) << DOUBLE_FRACTION_BITS);
    uint64_t base = 0;
    if (narrowed > 0) {
        /* Without the leading one, which the addition below brings. */
        base = (uint64_t)(narrowed - 1) << format.fraction_bits;
    } else {
        shift += 1 - narrowed;
        if (shift > DOUBLE_FRACTION_BITS + 2) {
            return (uint16_t)sign;
        }
    }
    uint64_t kept = significand >> shift;
    uint64_t rest = significand & ((UINT64_C(1) << shift) - 1);
    uint64_t half = UINT64_C(1) << (shift - 1);
    if (rest > half || (rest == half && (kept & 1) != 0)) {
        kept++;
    }
    /* A carry out of the fraction goes into the exponent, and out of the largest number into
     * infinity, as it should. */
    return (uint16_t)(sign | (uint32_t)(base + kept));
}

static double widen(uint16_t bits, struct format format) {
    uint64_t sign = (uint64_t)(bits >> 15) << 63;
    int exponent_max = (1 << format.exponent_bits) - 1;
    int exponent = (bits >> format.fraction_bits) & exponent_max;
    uint64_t fraction = bits & ((1u << format.fraction_bits) - 1);
    int shift = DOUBLE_FRACTION_BITS - format.fraction_bits;
    int wide = exponent - exponent_max / 2 + DOUBLE_BIAS;
    if (exponent == exponent_max) {
        wide = DOUBLE_EXPONENT_MAX;
    } else if (exponent == 0) {
        if (fraction == 0) {
            wide = 0;
        } else {
            /* Subnormal: every one is a normal double. */
            wide++;
            while ((fraction >> format.fraction_bits) == 0) {
                fraction <<= 1;
                wide--;
            }
            fraction &= (UINT64_C(1) << format.fraction_bits) - 1;
        }
    }
    uint64_t result = sign | (uint64_t)wide << DOUBLE_FRACTION_BITS | fraction << shift;
    double value;
    memcpy(&value, &result, sizeof value);
    return value;
}

const char *gpu_type_name(enum gpu_type type) {
    assert((unsigned)type < GPU_TYPE_COUNT);
    return facts[type].name;
}

uint32_t gpu_type_bytes(enum gpu_type type) {
    assert((unsigned)type < GPU_TYPE_COUNT);
    return facts[type].bytes;
}

enum gpu_class gpu_type_class(enum gpu_type type) {
    assert((unsigned)type < GPU_TYPE_COUNT);
    return facts[type].class;
}

/* Looks from the first type on that begins so: each buffer that is made asks. */
static unsigned first_type(char letter) {
    switch (letter) {
    case 'f':
        return GPU_TYPE_F16;
    case 'b':
        return GPU_TYPE_BF16;
    case 'c':
        return GPU_TYPE_C64;
    default:
        return 0;
    }
}

enum gpu_type gpu_type_parse(const char *name, size_t length) {
    for (unsigned i = length > 0 ? first_type(name[0]) : 0; i < GPU_TYPE_COUNT; i++) {
        if (facts[i].name_bytes == length && memcmp(facts[i].name, name, length) == 0) {
            return (enum gpu_type)i;
        }
    }
    return GPU_TYPE_COUNT;
}

bool gpu_type_parse_vector(const char *name, size_t length, enum gpu_type *type, uint8_t *lanes) {
    *lanes = 1;
    *type = gpu_type_parse(name, length);
    const char *x = *type == GPU_TYPE_COUNT ? memchr(name, 'x', length) : NULL;
    if (x != NULL) {
        bool is_single = name + length - x == 2 && x[1] >= '2' && x[1] <= '4';
        *type = gpu_type_parse(name, (size_t)(x - name));
        *lanes = is_single && *type != GPU_TYPE_COUNT && gpu_type_class(*type) != GPU_CLASS_COMPLEX
                     ? (uint8_t)(x[1] - '0')
                     : 0;
    }
    return *type != GPU_TYPE_COUNT;
}

uint16_t gpu_type_f16_from(double value) {
    return narrow(value, binary16);
}
double gpu_type_f16_to(uint16_t bits) {
    return widen(bits, binary16);
}
uint16_t gpu_type_bf16_from(double value) {
    return narrow(value, bfloat16);
}
double gpu_type_bf16_to(uint16_t bits) {
    return widen(bits, bfloat16);
}
