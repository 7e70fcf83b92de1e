/* Compiled modules as bytes (see image.h). */
#include "backend/cuda/image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define IMAGE_MAGIC "gpulua-cuda-1\n\0" /* 16 bytes with its NULs */
#define FATBIN_MAGIC 0xba55ed50u

struct image_header {
    char magic[16];
    uint64_t prints;
    uint64_t description_bytes, symbol_bytes; /* with their NULs */
    uint64_t code_bytes;
};
static_assert(sizeof IMAGE_MAGIC == 16, "layout");
static_assert(sizeof(struct image_header) == 48, "layout");

static size_t aligned(size_t bytes) {
    return (bytes + 15) & ~(size_t)15;
}

void *gpu_cuda_image_make(const struct cuda_image *image, size_t *byte_count) {
    struct image_header header = {.magic = IMAGE_MAGIC,
                                  .prints = image->prints ? 1 : 0,
                                  .description_bytes = strlen(image->description) + 1,
                                  .symbol_bytes = strlen(image->symbols) + 1,
                                  .code_bytes = image->code_bytes};
    size_t text = (size_t)header.description_bytes, symbols = (size_t)header.symbol_bytes;
    /* Code is read in place by the driver: aligned. */
    size_t code_offset = aligned(sizeof header + text + symbols);
    char *bytes = calloc(1, code_offset + image->code_bytes);
    if (bytes == NULL) {
        return NULL;
    }
    memcpy(bytes, &header, sizeof header);
    memcpy(bytes + sizeof header, image->description, text);
    memcpy(bytes + sizeof header + text, image->symbols, symbols);
    memcpy(bytes + code_offset, image->code, image->code_bytes);
    *byte_count = code_offset + image->code_bytes;
    return bytes;
}

bool gpu_cuda_image_read(const void *bytes, size_t byte_count, struct cuda_image *image) {
    struct image_header header;
    if (byte_count < sizeof header) {
        return false;
    }
    memcpy(&header, bytes, sizeof header);
    uint64_t rest = byte_count - sizeof header;
    if (memcmp(header.magic, IMAGE_MAGIC, sizeof header.magic) != 0 ||
        header.description_bytes == 0 || header.description_bytes > rest ||
        header.symbol_bytes == 0 || header.symbol_bytes > rest - header.description_bytes) {
        return false;
    }
    const char *text = (const char *)bytes + sizeof header;
    const char *symbols = text + header.description_bytes;
    size_t code_offset =
        aligned(sizeof header + (size_t)header.description_bytes + (size_t)header.symbol_bytes);
    if (code_offset > byte_count || header.code_bytes != byte_count - code_offset ||
        text[header.description_bytes - 1] != '\0' || symbols[header.symbol_bytes - 1] != '\0') {
        return false;
    }
    const char *why;
    *image = (struct cuda_image){.description = text,
                                 .symbols = symbols,
                                 .code = (const char *)bytes + code_offset,
                                 .code_bytes = (size_t)header.code_bytes,
                                 .prints = header.prints != 0};
    return gpu_cuda_code_kind(image->code, image->code_bytes, &why) != CUDA_CODE_NONE;
}

char *gpu_cuda_image_symbol(const struct cuda_image *image, char kind, const char *name) {
    size_t name_length = strlen(name);
    for (const char *line = image->symbols; *line != '\0';) {
        const char *end = strchr(line, '\n');
        end = end != NULL ? end : line + strlen(line);
        const char *tab = memchr(line, '\t', (size_t)(end - line));
        if (tab != NULL && line[0] == kind && tab - line >= 2 &&
            (size_t)(tab - line - 2) == name_length && memcmp(line + 2, name, name_length) == 0) {
            return strndup(tab + 1, (size_t)(end - tab - 1));
        }
        line = *end == '\n' ? end + 1 : end;
    }
    return NULL;
}

/* ---- users' code ---- */

static bool range_fits(uint64_t offset, uint64_t bytes, size_t byte_count) {
    return offset <= byte_count && bytes <= byte_count - offset;
}

static bool elf_fits(const unsigned char *bytes, size_t byte_count) {
    Elf64_Ehdr header;
    if (byte_count < sizeof header) {
        return false;
    }
    memcpy(&header, bytes, sizeof header);
    if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_ident[EI_DATA] != ELFDATA2LSB ||
        (header.e_shnum > 0 && header.e_shentsize != sizeof(Elf64_Shdr)) ||
        (header.e_phnum > 0 && header.e_phentsize != sizeof(Elf64_Phdr)) ||
        !range_fits(header.e_shoff, (uint64_t)header.e_shnum * sizeof(Elf64_Shdr), byte_count) ||
        !range_fits(header.e_phoff, (uint64_t)header.e_phnum * sizeof(Elf64_Phdr), byte_count)) {
        return false;
    }
    for (size_t i = 0; i < header.e_shnum; i++) {
        Elf64_Shdr section;
        memcpy(&section, bytes + header.e_shoff + i * sizeof section, sizeof section);
        if (section.sh_type != SHT_NOBITS && section.sh_type != SHT_NULL &&
            !range_fits(section.sh_offset, section.sh_size, byte_count)) {
            return false;
        }
    }
    return header.e_shnum > 0;
}

/* NVIDIA's container: magic, version, header length, then the length of what follows. */
static bool fatbin_fits(const unsigned char *bytes, size_t byte_count) {
    uint16_t header_bytes;
    uint64_t more;
    if (byte_count < 16) {
        return false;
    }
    memcpy(&header_bytes, bytes + 6, sizeof header_bytes);
    memcpy(&more, bytes + 8, sizeof more);
    return header_bytes >= 16 && range_fits(header_bytes, more, byte_count);
}

static bool contains(const void *bytes, size_t byte_count, const char *text) {
    return bytes != NULL && memmem(bytes, byte_count, text, strlen(text)) != NULL;
}

enum cuda_code gpu_cuda_code_kind(const void *bytes, size_t byte_count, const char **why) {
    const unsigned char *start = bytes;
    uint32_t magic = 0;
    if (byte_count >= sizeof magic) {
        memcpy(&magic, bytes, sizeof magic);
    }
    *why = "it is cut short or damaged";
    if (byte_count >= SELFMAG && memcmp(start, ELFMAG, SELFMAG) == 0) {
        return elf_fits(start, byte_count) ? CUDA_CODE_CUBIN : CUDA_CODE_NONE;
    }
    if (magic == FATBIN_MAGIC) {
        return fatbin_fits(start, byte_count) ? CUDA_CODE_FATBIN : CUDA_CODE_NONE;
    }
    /* A NUL may end PTX; one inside would hide the rest from the driver. */
    size_t length = byte_count > 0 && start[byte_count - 1] == '\0' ? byte_count - 1 : byte_count;
    if (length > 0 && memchr(start, '\0', length) == NULL && contains(start, length, ".version") &&
        contains(start, length, ".target")) {
        return CUDA_CODE_PTX;
    }
    *why = "it is neither PTX (which has .version and .target), nor a cubin, nor a fatbin";
    return CUDA_CODE_NONE;
}

bool gpu_cuda_code_prints(const void *bytes, size_t byte_count) {
    return contains(bytes, byte_count, "vprintf");
}
