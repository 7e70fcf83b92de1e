/* The catalogue of ranges, and labels as any tool may show them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/tap.h"
#include "ranges/ranges.h"

static struct tap tap;

static void test_catalogue(void) {
    bool is_well = true;
    for (int i = 0; i < GPU_RANGE_KIND_COUNT; i++) {
        const char *name = gpu_range_kind_name((enum gpu_range_kind)i);
        is_well &= strlen(name) > 0 && strlen(name) < 20 &&
                   strspn(name, "abcdefghijklmnopqrstuvwxyz") == strlen(name);
        for (int k = 0; k < i; k++) {
            is_well &= strcmp(name, gpu_range_kind_name((enum gpu_range_kind)k)) != 0;
        }
    }
    tap_check(&tap, is_well, "each range has a name of its own, of small letters");
}

static void test_setting(void) {
    tap_check(&tap,
              !gpu_ranges_wanted(NULL) && !gpu_ranges_wanted("") && !gpu_ranges_wanted("0") &&
                  !gpu_ranges_wanted("false") && !gpu_ranges_wanted("off"),
              "off");
    tap_check(&tap, gpu_ranges_wanted("1") && gpu_ranges_wanted("on") && gpu_ranges_wanted("00"),
              "anything else: on");
    tap_check(&tap, !gpu_ranges_are_on && !gpu_range_push(GPU_RANGE_WAIT, "x", 1),
              "off until somebody asks");
}

/* By another way than the code's: decodes to code points, and encodes them. False: no such text. */
static bool is_utf8(const unsigned char *text, size_t byte_count, bool *has_controls) {
    for (size_t at = 0; at < byte_count;) {
        unsigned char first = text[at];
        size_t length = first < 0x80 ? 1 : first >> 5 == 6 ? 2 : first >> 4 == 14 ? 3 : 4;
        uint32_t point = length == 1 ? first : first & (0xffu >> (length + 1));
        if (at + length > byte_count || first >= 0xf8 || (first >= 0x80 && first < 0xc0)) {
            return false;
        }
        for (size_t i = 1; i < length; i++) {
            if (text[at + i] >> 6 != 2) {
                return false;
            }
            point = point << 6 | (text[at + i] & 0x3f);
        }
        static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
        if (point < least[length] || point > 0x10ffff || (point >= 0xd800 && point < 0xe000)) {
            return false;
        }
        *has_controls |= point < 0x20 || (point >= 0x7f && point < 0xa0) || point == 0x61c ||
                         point == 0x200e || point == 0x200f ||
                         (point >= 0x2028 && point <= 0x202e) ||
                         (point >= 0x2066 && point <= 0x2069);
        at += length;
    }
    return true;
}

static uint64_t state = 1;
static uint32_t draw(uint32_t below) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 20) % below;
}

static void test_hostile(void) {
    static const char *const parts[] = {
        "abc",          "\xc3\xa4", "\xe2\x82\xac",     "\xf0\x9f\x98\x80", "\x1b[31m", "<b>",
        "\xed\xa0\x80", "\xc0\x80", "\xf4\x90\x80\x80", "\xc2\x9b",         "\"\\\n",   "\xe2\x82",
        "\u202e",       "\u2028",   "\u2069",           "\u061c",           "\u2027",   "\u206a"};
    bool is_text = true, fits = true, is_kept = true;
    for (int round = 0; round < 20000; round++) {
        unsigned char label[400], shown[300];
        size_t byte_count = 0, room = 1 + draw(sizeof shown);
        bool is_fine = true, has_controls = false, had_controls = false;
        while (byte_count < 380 && draw(20) != 0) {
            if (draw(3) == 0) {
                label[byte_count++] = (unsigned char)draw(256);
            } else {
                const char *part = parts[draw(sizeof parts / sizeof parts[0])];
                memcpy(label + byte_count, part, strlen(part));
                byte_count += strlen(part);
            }
        }
        is_fine = is_utf8(label, byte_count, &had_controls) && !had_controls;
        memset(shown, 0x55, sizeof shown);
        size_t length = gpu_range_text((char *)shown, room, (const char *)label, byte_count);
        fits &= length < room && shown[length] == '\0' && strlen((char *)shown) == length &&
                (room == sizeof shown || shown[room] == 0x55);
        is_text &= is_utf8(shown, length, &has_controls) && !has_controls;
        is_kept &= !is_fine || (memcmp(shown, label, length) == 0 &&
                                (length == byte_count || length + 4 >= room));
    }
    tap_check(&tap, fits, "20,000 labels: what is shown fits, and ends with its NUL");
    tap_check(&tap, is_text, "is UTF-8 without control characters and marks of direction");
    tap_check(&tap, is_kept, "and is the label itself, or its beginning, where that was fine");
}

int main(void) {
    test_catalogue();
    test_setting();
    test_hostile();
    return tap_finish(&tap);
}
